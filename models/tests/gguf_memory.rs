//! A hostile GGUF header costs no memory: counts and lengths are compared with the file before anything is reserved.
//!
//! A test binary of its own, since the peak of the whole process is measured.

use plimsoll_models::gguf::GgufFile;

/// What the process may use beyond its base.
const ALLOWED_KIB: u64 = 64 << 10;

/// Largest resident set of this process so far in KiB, where the system tells it.
fn peak_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[test]
fn declared_sizes_beyond_the_file_leave_the_peak_memory_flat() {
    let Some(base) = peak_kib() else {
        eprintln!("skipped: this system does not tell a process its peak memory");
        return;
    };
    let head = |tensors: u64, keys: u64| {
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend(tensors.to_le_bytes());
        file.extend(keys.to_le_bytes());
        file
    };
    let mut files = Vec::new();
    for huge in [1u64 << 28, 1 << 33, 1 << 40, u64::MAX / 2, u64::MAX] {
        files.push(head(huge, 0));
        files.push(head(0, huge));
        // A key, a string value, and arrays of each element type that claim to be huge.
        files.push([head(0, 1), huge.to_le_bytes().to_vec()].concat());
        for value_type in 8u32..=9 {
            for element in 0u32..=12 {
                let mut file = [head(0, 1), 1u64.to_le_bytes().to_vec(), b"k".to_vec()].concat();
                file.extend(value_type.to_le_bytes());
                if value_type == 9 {
                    file.extend(element.to_le_bytes());
                }
                file.extend(huge.to_le_bytes());
                files.push(file);
            }
        }
    }
    for file in files {
        GgufFile::parse(file).expect_err("the declared size is beyond the file");
    }
    let used = peak_kib().expect("it was told before") - base;
    assert!(used < ALLOWED_KIB, "peak memory grew by {used} KiB");
}
