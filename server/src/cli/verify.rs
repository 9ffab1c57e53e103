//! `plimsoll verify`: a model against itself and against reference logits.
//!
//! Feeds the same tokens in one pass, step by step, in uneven chunks and from a restored checkpoint. Exits with 1 when
//! the ways disagree or the reference is missed by more than the limit.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use plimsoll_kernels::KvType;
use plimsoll_kernels::cpu::{CpuDevice, CpuOptions};
use plimsoll_models::architecture::{self, StepLimits};
use plimsoll_models::gguf::GgufFile;
use plimsoll_models::source::Sources;
use plimsoll_runtime::model_executor::ModelExecutor;
use plimsoll_runtime::verify::{self, Report};
use safetensors::{Dtype, SafeTensors};

/// Compare a model with itself, fed in four ways, and with reference logits.
///
/// The reference is a safetensors file with `token_ids` (int32) and `logits` (float32, one row per token), or a JSON
/// file with `ids`, `greedy_f32` and `last_top8_f32`. Without one, random tokens are fed and the four ways are
/// compared with each other alone.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  plimsoll verify smollm2
  plimsoll verify model-f32.gguf --reference reference.safetensors --json")]
pub struct Verify {
    /// A GGUF file, a known name, or organisation/repository:file.gguf.
    model: String,
    /// Reference logits.
    #[arg(long, value_name = "FILE")]
    reference: Option<PathBuf>,
    /// Largest difference allowed against full reference logits [default: 5e-4 for a safetensors reference].
    #[arg(long, value_name = "DIFFERENCE")]
    limit: Option<f32>,
    /// Threads of the kernels [default: one per core].
    #[arg(long)]
    threads: Option<std::num::NonZeroUsize>,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

/// Random tokens fed where there is no reference: as many as the fixtures have, three pages and one token.
const RANDOM_TOKENS: usize = 97;
/// Longest reference, in tokens: its logits are held in memory in full, four times.
const MOST_TOKENS: usize = 2048;
/// Greedy tokens compared with a JSON reference: quantised activations drift apart later.
const GREEDY_TOKENS: usize = 8;
/// Mean difference of the listed logits of a JSON reference, as a share of their standard deviation over the row.
const MOST_MEAN_DIFFERENCE: f32 = 0.05;

enum Reference {
    None { tokens: Vec<u32> },
    Logits { tokens: Vec<u32>, logits: Vec<f32> },
    Golden(Golden),
}

#[derive(serde::Deserialize)]
struct Golden {
    ids: Vec<u32>,
    greedy_f32: Vec<u32>,
    last_top8_f32: Vec<(u32, f32)>,
}

#[derive(Debug, serde::Serialize)]
struct GoldenReport {
    greedy_expected: Vec<u32>,
    greedy_found: Vec<u32>,
    mean_difference: f32,
    logit_std: f32,
    passed: bool,
}

#[derive(serde::Serialize)]
struct Output<'a> {
    model: String,
    executor: String,
    #[serde(flatten)]
    report: &'a Report,
    #[serde(skip_serializing_if = "Option::is_none")]
    golden: Option<&'a GoldenReport>,
}

impl Verify {
    /// Runs the comparison.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let local =
            Sources::from_env()?.fetch(&self.model).with_context(|| format!("finding the model `{}`", self.model))?;
        let path = local.path.display();
        if local.path.is_dir() {
            bail!("`{path}` is a folder; safetensors checkpoints are not supported yet, give a GGUF file");
        }
        let file = GgufFile::open(&local.path).with_context(|| format!("reading `{path}`"))?;
        let device = CpuDevice::new(CpuOptions { threads: self.threads, ..CpuOptions::default() })?;
        let probe = StepLimits { max_rows: 1, max_logits: 1, kv_type: KvType::F32 };
        let vocab = architecture::plan(&file, &device, probe)?.vocab;
        let reference = match &self.reference {
            Some(path) => Reference::read(path, vocab).with_context(|| format!("reading `{}`", path.display()))?,
            None => Reference::random(vocab),
        };

        let tokens = reference.tokens();
        let limits = StepLimits { max_rows: tokens.len(), max_logits: tokens.len(), kv_type: KvType::F32 };
        let model = architecture::load(&file, &device, limits)?;
        let pages = verify::pages_needed(tokens.len() + GREEDY_TOKENS);
        let mut executor = ModelExecutor::new(device, model, pages, usize::MAX)?;
        let (logits, limit) = match &reference {
            Reference::Logits { logits, .. } => (Some(logits.as_slice()), self.limit.unwrap_or(verify::MAX_DIFFERENCE)),
            _ => (None, self.limit.unwrap_or(verify::MAX_DIFFERENCE)),
        };
        let report = verify::verify(&mut executor, tokens, logits, limit);
        let golden = match &reference {
            Reference::Golden(golden) => Some(golden.compare(&mut executor)),
            _ => None,
        };

        let passed = report.passed && golden.as_ref().is_none_or(|g| g.passed);
        if self.json {
            let output = Output {
                model: path.to_string(),
                executor: plimsoll_runtime::executor::Executor::describe(&executor),
                report: &report,
                golden: golden.as_ref(),
            };
            println!("{}", serde_json::to_string_pretty(&output)?);
        } else {
            print_table(&report, golden.as_ref());
            println!("{}", if passed { "passed" } else { "FAILED" });
        }
        Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

impl Reference {
    fn tokens(&self) -> &[u32] {
        match self {
            Self::None { tokens } | Self::Logits { tokens, .. } => tokens,
            Self::Golden(golden) => &golden.ids,
        }
    }

    /// Tokens of a fixed linear congruential sequence (the constants of Knuth's MMIX), the same on every run.
    fn random(vocab: usize) -> Self {
        let mut state = 1u64;
        let tokens = (0..RANDOM_TOKENS)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((state >> 33) % vocab as u64) as u32
            })
            .collect();
        Self::None { tokens }
    }

    fn read(path: &Path, vocab: usize) -> anyhow::Result<Self> {
        let bytes = std::fs::read(path)?;
        let reference = if bytes.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{') {
            Self::Golden(serde_json::from_slice(&bytes).context("a JSON reference has ids, greedy_f32, last_top8_f32")?)
        } else {
            Self::from_safetensors(&bytes, vocab)?
        };
        let tokens = reference.tokens();
        ensure!(
            (1..=MOST_TOKENS).contains(&tokens.len()),
            "the reference has {} tokens, expected 1 to {MOST_TOKENS}",
            tokens.len()
        );
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= vocab) {
            bail!("token {token} of the reference is outside the model's vocabulary of {vocab}");
        }
        if let Self::Golden(golden) = &reference
            && let Some((token, _)) = golden.last_top8_f32.iter().find(|(token, _)| *token as usize >= vocab)
        {
            bail!("token {token} of last_top8_f32 is outside the model's vocabulary of {vocab}");
        }
        Ok(reference)
    }

    fn from_safetensors(bytes: &[u8], vocab: usize) -> anyhow::Result<Self> {
        let tensors = SafeTensors::deserialize(bytes)?;
        let words = |name: &str, dtype: Dtype| -> anyhow::Result<Vec<[u8; 4]>> {
            let tensor = tensors.tensor(name)?;
            ensure!(tensor.dtype() == dtype, "`{name}` is {:?}, expected {dtype:?}", tensor.dtype());
            Ok(tensor.data().chunks_exact(4).map(|c| [c[0], c[1], c[2], c[3]]).collect())
        };
        let tokens: Vec<u32> = words("token_ids", Dtype::I32)?.into_iter().map(u32::from_le_bytes).collect();
        let logits: Vec<f32> = words("logits", Dtype::F32)?.into_iter().map(f32::from_le_bytes).collect();
        ensure!(
            logits.len() == tokens.len() * vocab,
            "the reference has {} logits, expected {} tokens x {vocab}",
            logits.len(),
            tokens.len()
        );
        Ok(Self::Logits { tokens, logits })
    }
}

impl Golden {
    fn compare<D: plimsoll_kernels::Device>(&self, executor: &mut ModelExecutor<D>) -> GoldenReport {
        let expected: Vec<u32> = self.greedy_f32.iter().copied().take(GREEDY_TOKENS).collect();
        let (found, last) = verify::greedy(executor, &self.ids, expected.len());
        let mean = last.iter().sum::<f32>() / last.len() as f32;
        let std = (last.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / last.len() as f32).sqrt();
        let differences = self.last_top8_f32.iter().map(|&(token, logit)| (last[token as usize] - logit).abs());
        let difference = differences.sum::<f32>() / self.last_top8_f32.len().max(1) as f32;
        let passed = found == expected && difference < MOST_MEAN_DIFFERENCE * std;
        GoldenReport {
            greedy_expected: expected,
            greedy_found: found,
            mean_difference: difference,
            logit_std: std,
            passed,
        }
    }
}

fn print_table(report: &Report, golden: Option<&GoldenReport>) {
    if report.passes.iter().any(|pass| pass.reference.is_some()) {
        println!("{} tokens; limits: {:e} to the reference, 0 between the ways", report.tokens, report.limit);
    } else {
        println!("{} tokens; limit: 0 between the ways", report.tokens);
    }
    println!(
        "{:<26} {:>14} {:>14} {:>9} {:>14}",
        "way of feeding", "max to ref.", "mean to ref.", "argmax", "max to one pass"
    );
    for pass in &report.passes {
        let (max, mean, argmax) = pass.reference.map_or(("-".into(), "-".into(), "-".into()), |c| {
            (
                format!("{:.2e}", c.max_difference),
                format!("{:.2e}", c.mean_difference),
                format!("{}/{}", c.argmax_equal, c.rows),
            )
        });
        let name = format!("{:?}", pass.pass);
        println!("{name:<26} {max:>14} {mean:>14} {argmax:>9} {:>14.2e}", pass.one_pass.max_difference);
    }
    if let Some(golden) = golden {
        println!("greedy expected {:?}\ngreedy found    {:?}", golden.greedy_expected, golden.greedy_found);
        let share = 100.0 * golden.mean_difference / golden.logit_std;
        println!("listed logits: mean difference {:.3} = {share:.2} % of the row's deviation", golden.mean_difference);
    }
}
