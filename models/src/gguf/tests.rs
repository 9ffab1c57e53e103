//! Every fault a header can have is a typed error; a right file reads back as it was written.

use proptest::prelude::*;

use super::writer::{Tensor, Value, Writer};
use super::*;

/// A file with every kind of value and tensors of two types.
fn sample() -> Writer {
    let mut nested = (ValueType::Array as u32).to_le_bytes().to_vec();
    nested.extend(2u64.to_le_bytes());
    for numbers in [vec![1u16, 2], vec![3]] {
        nested.extend((ValueType::U16 as u32).to_le_bytes());
        nested.extend((numbers.len() as u64).to_le_bytes());
        nested.extend(numbers.iter().flat_map(|n| n.to_le_bytes()));
    }
    let mut names = (ValueType::Array as u32).to_le_bytes().to_vec();
    names.extend(1u64.to_le_bytes());
    names.extend((ValueType::String as u32).to_le_bytes());
    names.extend(1u64.to_le_bytes());
    names.extend(2u64.to_le_bytes());
    names.extend(b"hi");
    Writer::default()
        .with_text("general.architecture", "llama")
        .with("llama.context_length", Value::U32(8192))
        .with("a.negative", Value::I32(-5))
        .with("a.float", Value::F32(1e-5))
        .with("a.bool", Value::Bool(true))
        .with("a.u8", Value::Raw(0, vec![200]))
        .with("a.u64", Value::Raw(10, u64::MAX.to_le_bytes().to_vec()))
        .with("a.f64", Value::Raw(12, 0.5f64.to_le_bytes().to_vec()))
        .with("a.bools", Value::Raw(9, [&7u32.to_le_bytes()[..], &2u64.to_le_bytes(), &[1, 0]].concat()))
        .with("a.nested", Value::Raw(9, nested))
        .with("a.names", Value::Raw(9, names))
        .with("tokenizer.ggml.tokens", Value::Strings(vec!["a".into(), String::new(), "Ġé".into()]))
        .with("tokenizer.ggml.scores", Value::F32s(vec![0.0, -1.0, -2.5]))
        .with("tokenizer.ggml.token_type", Value::I32s(vec![1, 3, -1]))
        .with_tensor("norm", &[3], GgmlType::F32, (0..12).collect())
        .with_tensor("matrix", &[32, 2, 2], GgmlType::Q8_0, (0..136).collect())
}

fn error(writer: &Writer) -> GgufError {
    GgufFile::parse(writer.bytes()).expect_err("the file has a fault")
}

fn patched(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut file = sample().bytes();
    file[at..at + bytes.len()].copy_from_slice(bytes);
    file
}

#[test]
fn a_file_reads_back_as_it_was_written() {
    for version in [2, 3] {
        let file = GgufFile::parse(Writer { version, ..sample() }.bytes()).unwrap();
        assert_eq!(file.version(), version);
        assert_eq!(file.require::<&str>("general.architecture").unwrap(), "llama");
        assert_eq!(file.require::<u32>("llama.context_length").unwrap(), 8192);
        assert_eq!(file.require::<i32>("a.negative").unwrap(), -5);
        assert_eq!(file.require::<f32>("a.float").unwrap(), 1e-5);
        assert_eq!(file.require::<f32>("a.f64").unwrap(), 0.5);
        assert!(file.require::<bool>("a.bool").unwrap());
        assert_eq!(file.require::<u32>("a.u8").unwrap(), 200);
        assert_eq!(file.require::<u64>("a.u64").unwrap(), u64::MAX);
        assert_eq!(file.require::<Vec<bool>>("a.bools").unwrap(), [true, false]);
        assert_eq!(file.require::<Vec<f32>>("tokenizer.ggml.scores").unwrap(), [0.0, -1.0, -2.5]);
        assert_eq!(file.require::<Vec<i32>>("tokenizer.ggml.token_type").unwrap(), [1, 3, -1]);
        let tokens = file.require::<Strings>("tokenizer.ggml.tokens").unwrap();
        assert_eq!(tokens.len(), 3);
        assert_eq!(tokens.collect::<Vec<_>>(), ["a", "", "Ġé"]);
        assert_eq!(file.get::<u32>("absent").unwrap(), None);
        assert_eq!(file.metadata().len(), 14);

        let nested = file.require::<MetadataArray>("a.nested").unwrap();
        let rows: Vec<Vec<u32>> = nested.iter().map(|row| Vec::<u32>::from_metadata(row).unwrap()).collect();
        assert_eq!(rows, [vec![1, 2], vec![3]]);
        let names = file.require::<MetadataArray>("a.names").unwrap();
        let names: Vec<Vec<&str>> = names.iter().map(|row| Strings::from_metadata(row).unwrap().collect()).collect();
        assert_eq!(names, [["hi"]]);

        let norm = file.tensor("norm").unwrap();
        assert_eq!((norm.dims, norm.rows(), norm.cols(), norm.ggml_type), (&[3][..], 1, 3, GgmlType::F32));
        assert_eq!(norm.bytes, (0..12).collect::<Vec<u8>>());
        let matrix = file.require_tensor("matrix").unwrap();
        assert_eq!((matrix.dims, matrix.rows(), matrix.cols()), (&[32, 2, 2][..], 4, 32));
        assert_eq!(matrix.bytes, (0..136).collect::<Vec<u8>>());
        assert_eq!(file.tensors().map(|t| t.name).collect::<Vec<_>>(), ["norm", "matrix"]);
        assert!(matches!(file.require_tensor("absent"), Err(GgufError::MissingTensor { .. })));
    }
}

#[test]
fn a_mapped_file_equals_the_file_in_memory() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sample.gguf");
    std::fs::write(&path, sample().bytes()).unwrap();
    let file = GgufFile::open(&path).unwrap();
    assert_eq!(file.tensor("matrix").unwrap().bytes, (0..136).collect::<Vec<u8>>());
    std::fs::write(&path, []).unwrap();
    assert!(matches!(GgufFile::open(&path), Err(GgufError::TruncatedHeader { available: 0, .. })));
    assert!(matches!(GgufFile::open(&directory.path().join("absent")), Err(GgufError::Io { .. })));
    assert!(matches!(GgufFile::open(directory.path()), Err(GgufError::Io { .. })));
    // A pipe without a writer would hold whoever opens it; sockets are refused the same way.
    #[cfg(unix)]
    {
        let socket = directory.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for path in [socket.as_path(), Path::new("/dev/zero")] {
            assert!(matches!(GgufFile::open(path), Err(GgufError::NotAFile { .. })), "{}", path.display());
        }
    }
}

#[test]
fn a_wrong_type_names_the_key_and_both_types() {
    let file = GgufFile::parse(sample().bytes()).unwrap();
    let message = |error: GgufError| error.to_string();
    assert_eq!(
        message(file.require::<u32>("general.architecture").unwrap_err()),
        "metadata key \"general.architecture\" is the string \"llama\", an integer from 0 to 2^32-1 expected"
    );
    assert_eq!(
        message(file.require::<u32>("a.negative").unwrap_err()),
        "metadata key \"a.negative\" is the integer -5, an integer from 0 to 2^32-1 expected"
    );
    assert_eq!(
        message(file.get::<Strings>("tokenizer.ggml.scores").err().unwrap()),
        "metadata key \"tokenizer.ggml.scores\" is an array of 3 f32 values, an array of strings expected"
    );
    assert_eq!(
        message(file.require::<bool>("absent").unwrap_err()),
        "the file has no metadata key \"absent\" (a bool expected)"
    );
    assert!(file.get::<bool>("llama.context_length").is_err());
    assert!(file.get::<Vec<u32>>("tokenizer.ggml.token_type").is_err());
}

#[test]
fn a_header_cut_at_any_byte_is_an_error() {
    let (bytes, header) = sample().write();
    for end in 0..header {
        GgufFile::parse(bytes[..end].to_vec()).expect_err("a cut header is refused");
    }
}

#[test]
fn data_cut_at_any_byte_names_both_sizes() {
    let (bytes, header) = sample().write();
    for end in header..bytes.len() {
        match GgufFile::parse(bytes[..end].to_vec()) {
            Err(GgufError::TruncatedData { tensor, expected, actual }) => {
                assert_eq!((tensor.as_str(), expected, actual), ("matrix", bytes.len() as u64, end as u64));
            }
            other => panic!("cut at {end}: {other:?}"),
        }
    }
}

#[test]
fn a_wrong_magic_version_or_byte_order_is_named() {
    assert!(matches!(GgufFile::parse(patched(0, b"GGML")), Err(GgufError::BadMagic { found }) if &found == b"GGML"));
    for version in [0u32, 1, 4, 70_000] {
        let file = patched(4, &version.to_le_bytes());
        assert!(
            matches!(GgufFile::parse(file), Err(GgufError::UnsupportedVersion { version: v }) if v == version),
            "version {version}"
        );
    }
    assert!(matches!(GgufFile::parse(patched(4, &3u32.to_be_bytes())), Err(GgufError::BigEndian { version: 3 })));
}

#[test]
fn counts_beyond_the_file_are_refused_before_anything_is_allocated() {
    for count in [1_000u64, 1 << 40, u64::MAX] {
        for (at, named) in [(8, "the tensor count"), (16, "the metadata count")] {
            let Err(GgufError::CountBeyondFile { what, offset, count: found, needed, available }) =
                GgufFile::parse(patched(at, &count.to_le_bytes()))
            else {
                panic!("{named} = {count} must be refused by its size");
            };
            assert_eq!((what, offset, found), (named, at as u64, count));
            assert!(needed > u128::from(available));
        }
    }
}

#[test]
fn more_keys_than_any_model_has_are_refused() {
    let mut file = sample().bytes();
    file[16..24].copy_from_slice(&(1u64 << 17).to_le_bytes());
    file.resize(4 << 20, 0);
    assert!(matches!(GgufFile::parse(file), Err(GgufError::TooMany { what: "the metadata count", .. })));
}

#[test]
fn lengths_beyond_the_file_are_refused() {
    for length in [10_000u64, u64::MAX] {
        // The first key's length stands right after the fixed part of the header.
        let found = GgufFile::parse(patched(24, &length.to_le_bytes()));
        assert!(matches!(found, Err(GgufError::CountBeyondFile { what: "metadata key", offset: 24, .. })), "{found:?}");
        for (element, what) in [(6u32, "the array length"), (8, "the array length"), (9, "the array length")] {
            let array = [&element.to_le_bytes()[..], &length.to_le_bytes()].concat();
            match error(&Writer::default().with("k", Value::Raw(9, array))) {
                GgufError::CountBeyondFile { what: found, count, .. } => assert_eq!((found, count), (what, length)),
                other => panic!("{other}"),
            }
        }
        let text = length.to_le_bytes().to_vec();
        let found = error(&Writer::default().with("k", Value::Raw(8, text)));
        assert!(matches!(found, GgufError::CountBeyondFile { what: "metadata string", .. }), "{found}");
    }
}

#[test]
fn deep_nesting_is_refused_without_recursion_to_the_end() {
    let mut array = Vec::new();
    for _ in 0..100_000 {
        array.extend(9u32.to_le_bytes());
        array.extend(1u64.to_le_bytes());
    }
    let found = error(&Writer::default().with("k", Value::Raw(9, array)));
    assert!(matches!(found, GgufError::NestedTooDeep { limit: 4, .. }), "{found}");
}

#[test]
fn wrong_values_are_refused_where_they_stand() {
    let unknown = error(&Writer::default().with("k", Value::Raw(13, vec![0; 8])));
    assert!(matches!(unknown, GgufError::UnknownValueType { number: 13, offset: 33 }), "{unknown}");
    let element = [&77u32.to_le_bytes()[..], &0u64.to_le_bytes()].concat();
    let unknown = error(&Writer::default().with("k", Value::Raw(9, element)));
    assert!(matches!(unknown, GgufError::UnknownValueType { number: 77, offset: 37 }), "{unknown}");
    let flag = error(&Writer::default().with("k", Value::Raw(7, vec![2])));
    assert!(matches!(flag, GgufError::BadBool { offset: 37, found: 2 }), "{flag}");
    let flags = [&7u32.to_le_bytes()[..], &2u64.to_le_bytes(), &[0, 255]].concat();
    let flag = error(&Writer::default().with("k", Value::Raw(9, flags)));
    assert!(matches!(flag, GgufError::BadBool { offset: 50, found: 255 }), "{flag}");
    let text = [&3u64.to_le_bytes()[..], b"a\xff\xfe"].concat();
    let bad = error(&Writer::default().with("k", Value::Raw(8, text)));
    assert!(matches!(bad, GgufError::BadUtf8 { what: "metadata string", offset: 45, bad_byte: 46 }), "{bad}");
    let texts = [&8u32.to_le_bytes()[..], &1u64.to_le_bytes(), &1u64.to_le_bytes(), b"\x80"].concat();
    let bad = error(&Writer::default().with("k", Value::Raw(9, texts)));
    assert!(matches!(bad, GgufError::BadUtf8 { what: "array string", .. }), "{bad}");
    let mut file = sample().bytes();
    file[32] = 0xff;
    assert!(matches!(GgufFile::parse(file), Err(GgufError::BadUtf8 { what: "metadata key", .. })));
}

#[test]
fn duplicates_are_refused() {
    let twice = Writer::default().with("same", Value::U32(1)).with("same", Value::U32(2));
    assert!(matches!(error(&twice), GgufError::DuplicateKey { key, .. } if key == "same"));
    let twice = Writer::default().with_tensor("same", &[1], GgmlType::F32, vec![0; 4]).with_tensor(
        "same",
        &[1],
        GgmlType::F32,
        vec![0; 4],
    );
    assert!(matches!(error(&twice), GgufError::DuplicateTensor { name, .. } if name == "same"));
}

#[test]
fn alignments_that_are_no_alignment_are_refused() {
    for alignment in [0u32, 1, 3, 4, 33, 1 << 21, 1 << 31, u32::MAX] {
        let found = error(&sample().with("general.alignment", Value::U32(alignment)));
        assert!(
            matches!(found, GgufError::BadAlignment { found, .. } if found == u64::from(alignment)),
            "alignment {alignment}"
        );
    }
    let found = error(&sample().with("general.alignment", Value::F32(32.0)));
    assert!(matches!(found, GgufError::WrongType { expected: "a u32", .. }), "{found}");
    for alignment in [8u32, 64, 4096] {
        let writer = Writer { alignment: alignment.into(), ..sample() };
        let file = GgufFile::parse(writer.with("general.alignment", Value::U32(alignment)).bytes()).unwrap();
        assert_eq!(file.alignment(), u64::from(alignment));
        assert_eq!(file.tensor("matrix").unwrap().bytes[5], 5);
    }
}

/// A file with one tensor described so.
fn tensor(dims: &[u64], type_number: u32, offset: u64, data: usize) -> Writer {
    let mut writer = Writer::default();
    writer.tensors.push(Tensor {
        name: "t".into(),
        dims: dims.to_vec(),
        type_number,
        offset: Some(offset),
        data: vec![0; data],
    });
    writer
}

#[test]
fn shapes_that_cannot_be_are_refused() {
    for dims in [&[][..], &[1, 1, 1, 1, 1][..]] {
        let found = error(&tensor(dims, 0, 0, 64));
        assert!(matches!(found, GgufError::BadDimensionCount { limit: 4, .. }), "{found}");
    }
    assert!(matches!(error(&tensor(&[4, 0], 0, 0, 64)), GgufError::ZeroDimension { dimension: 1, .. }));
    for dims in [&[1 << 32, 1 << 32][..], &[1 << 62][..], &[1 << 16; 4][..], &[u64::MAX, 2][..], &[1 << 63, 2][..]] {
        let found = error(&tensor(dims, 0, 0, 64));
        assert!(matches!(&found, GgufError::SizeOverflow { dims: d, .. } if d == dims), "{found}");
    }
    let found = error(&tensor(&[33, 2], 8, 0, 64));
    assert!(matches!(found, GgufError::RaggedRow { row: 33, block: 32, ggml_type: "Q8_0", .. }), "{found}");
    let found = error(&tensor(&[32, 8], 12, 0, 64));
    assert!(matches!(found, GgufError::RaggedRow { row: 32, block: 256, ggml_type: "Q4_K", .. }), "{found}");
}

#[test]
fn types_that_cannot_be_read_are_named() {
    for (number, name) in [(39u32, Some("MXFP4")), (4, None), (u32::MAX, None)] {
        match error(&tensor(&[32], number, 0, 64)) {
            GgufError::UnsupportedTensorType { number: n, name: found, .. } => assert_eq!((n, found), (number, name)),
            other => panic!("{other}"),
        }
    }
    assert_eq!(
        error(&tensor(&[32], 39, 0, 64)).to_string(),
        "tensor \"t\" at byte 24 has type number 39 (MXFP4), which is not supported"
    );
}

#[test]
fn offsets_that_are_unaligned_overlap_or_leave_the_file_are_refused() {
    let found = error(&tensor(&[4], 0, 1, 64));
    assert!(matches!(found, GgufError::UnalignedTensor { data_offset: 1, alignment: 32, .. }), "{found}");
    let found = error(&tensor(&[4], 0, 1 << 40, 64));
    assert!(matches!(found, GgufError::TruncatedData { expected, .. } if expected > 1 << 40), "{found}");
    let found = error(&tensor(&[4], 0, u64::MAX - 31, 64));
    assert!(matches!(found, GgufError::SizeOverflow { .. }), "{found}");

    let mut writer = sample();
    writer.tensors[1].offset = Some(0);
    match error(&writer) {
        GgufError::OverlappingTensors { first, second, start, end } => {
            assert_eq!((first.as_str(), second.as_str()), ("norm", "matrix"));
            assert_eq!(end, start + 12);
        }
        other => panic!("{other}"),
    }
}

#[test]
fn names_longer_than_the_format_allows_are_refused() {
    let long = Writer::default().with_tensor(&"n".repeat(65), &[1], GgmlType::F32, vec![0; 4]);
    assert!(matches!(error(&long), GgufError::TooMany { found: 65, limit: 64, .. }));
    let long = Writer::default().with(&"k".repeat(1 << 16), Value::U32(1));
    assert!(matches!(error(&long), GgufError::TooMany { found: 65_536, limit: 65_535, .. }));
}

/// Reads everything an accepted file offers.
fn walk(file: &GgufFile) {
    fn visit(value: MetadataValue<'_>) {
        let _ = value.describe();
        if let MetadataValue::Array(array) = value {
            assert_eq!(array.iter().len(), array.len());
            array.iter().for_each(visit);
        }
    }
    file.metadata().for_each(|(_, v)| visit(v));
    for tensor in file.tensors() {
        let weights = tensor.rows().checked_mul(tensor.cols()).expect("checked when the header was read");
        let blocks = weights / tensor.ggml_type.block_weights();
        assert_eq!(tensor.bytes.len(), blocks * tensor.ggml_type.block_bytes());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn random_damage_is_an_error_or_a_file_that_can_be_walked(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
        cuts in prop::bool::weighted(0.2),
    ) {
        let mut bytes = sample().bytes();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if cuts {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(file) = GgufFile::parse(bytes) {
            walk(&file);
        }
    }

    #[test]
    fn random_words_in_the_header_are_an_error_or_a_file_that_can_be_walked(
        at in any::<prop::sample::Index>(),
        word in prop_oneof![any::<u64>(), Just(u64::MAX), Just(1 << 63), 0u64..40, Just(1 << 32)],
    ) {
        let (mut bytes, header) = sample().write();
        let at = at.index(header - 8);
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        if let Ok(file) = GgufFile::parse(bytes) {
            walk(&file);
        }
    }

    #[test]
    fn random_bytes_after_a_right_start_are_refused_or_walked(tail in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut bytes = b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0".to_vec();
        bytes.extend(tail);
        if let Ok(file) = GgufFile::parse(bytes) {
            walk(&file);
        }
    }
}
