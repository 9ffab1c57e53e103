//! Every byte that will be allocated for a model, before it is.
//!
//! Weights, activations and kernel scratch are fixed by the file and the step limits; what is left goes to K/V pages.
//! A plan that does not fit is an error with the numbers, never a silently smaller pool.

use std::fmt;

use plimsoll_kernels::PAGE_TOKENS;
use plimsoll_models::architecture::ModelShape;

/// How large the page pool should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolSize {
    /// So many sequences that fill the whole window.
    Windows(usize),
    /// As many whole pages as fit into so many bytes.
    Bytes(usize),
}

/// What a model will hold in memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct MemoryPlan {
    /// The longest sequence that is served, in tokens.
    pub window: usize,
    /// Packed weights and parameter vectors.
    pub weights: usize,
    /// Activation buffers.
    pub activations: usize,
    /// Scratch of the kernels.
    pub scratch: usize,
    /// Pages in the pool.
    pub pages: usize,
    /// Bytes of one page.
    pub page_bytes: usize,
}

/// Why no plan could be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum PlanError {
    #[error(
        "a window of {window} tokens is more than the {supported} the model supports; choose a window of at most \
         {supported}"
    )]
    WindowBeyondModel { window: usize, supported: usize },
    #[error(
        "one window of {window} tokens needs {needed} pages ({needed_bytes} bytes) of K/V cache, the pool would have \
         {pages} ({pool_bytes} bytes); give the cache more memory or choose a smaller window"
    )]
    PoolBelowWindow { window: usize, needed: usize, needed_bytes: usize, pages: usize, pool_bytes: usize },
    #[error(
        "the plan needs {needed} bytes (weights {weights}, activations {activations}, scratch {scratch}, K/V pages \
         {pool}), {available} bytes are available; choose a smaller window, a smaller cache or a smaller model"
    )]
    TooLittleMemory { needed: usize, weights: usize, activations: usize, scratch: usize, pool: usize, available: usize },
}

impl MemoryPlan {
    /// Plans a model with sequences of up to `window` tokens. `available` is the memory it may take, where known.
    pub fn new(
        shape: &ModelShape,
        scratch: usize,
        window: usize,
        pool: PoolSize,
        available: Option<usize>,
    ) -> Result<Self, PlanError> {
        if window > shape.max_context {
            return Err(PlanError::WindowBeyondModel { window, supported: shape.max_context });
        }
        let page_bytes = shape.kv.page_bytes();
        let needed = window.div_ceil(PAGE_TOKENS);
        let pages = match pool {
            PoolSize::Windows(windows) => needed.saturating_mul(windows),
            PoolSize::Bytes(bytes) => bytes / page_bytes,
        };
        if pages < needed {
            return Err(PlanError::PoolBelowWindow {
                window,
                needed,
                needed_bytes: needed.saturating_mul(page_bytes),
                pages,
                pool_bytes: pages * page_bytes,
            });
        }
        let plan = Self {
            window,
            weights: shape.weight_bytes,
            activations: shape.activation_bytes,
            scratch,
            pages,
            page_bytes,
        };
        match available {
            Some(available) if plan.total() > available => Err(PlanError::TooLittleMemory {
                needed: plan.total(),
                weights: plan.weights,
                activations: plan.activations,
                scratch: plan.scratch,
                pool: plan.pool(),
                available,
            }),
            _ => Ok(plan),
        }
    }

    /// Bytes of all K/V pages.
    pub fn pool(&self) -> usize {
        self.pages.saturating_mul(self.page_bytes)
    }

    /// Bytes of everything.
    pub fn total(&self) -> usize {
        [self.weights, self.activations, self.scratch, self.pool()].into_iter().fold(0, usize::saturating_add)
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |what: &str, bytes: usize, note: String| {
            writeln!(f, "  {what:<12} {bytes:>15} bytes  {:>9.1} MiB  {note}", bytes as f64 / (1 << 20) as f64)
        };
        row("weights", self.weights, String::new())?;
        row("activations", self.activations, String::new())?;
        row("scratch", self.scratch, String::new())?;
        let tokens = self.pages * PAGE_TOKENS;
        row(
            "K/V pages",
            self.pool(),
            format!("{} pages of {} bytes: {tokens} tokens, windows of {}", self.pages, self.page_bytes, self.window),
        )?;
        row("total", self.total(), String::new())
    }
}

/// Memory the system says is available, in bytes: `MemAvailable` of `/proc/meminfo`, or less where a control group
/// (version 2) allows less; cached files do not count as used in either. `None` where the system does not say.
pub fn available_memory() -> Option<usize> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let system = line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)?;
    let read = |name: &str| std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok();
    let group = group_available(read("memory.max"), read("memory.current"), read("memory.stat"));
    Some(system.min(group.unwrap_or(usize::MAX)))
}

/// What a control group leaves, from the text of its files; `None` if it sets no limit. `memory.current` counts cached
/// files, the mapped model among them, which the kernel drops when memory is wanted.
fn group_available(max: Option<String>, current: Option<String>, stat: Option<String>) -> Option<usize> {
    let (max, current): (usize, usize) = (max?.trim().parse().ok()?, current?.trim().parse().ok()?);
    let stat = stat.unwrap_or_default();
    let counter = |name: &str| {
        let value = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        value.trim().parse::<usize>().ok()
    };
    let cached = ["inactive_file", "active_file"].map(|name| counter(name).unwrap_or(0));
    let used = cached.into_iter().fold(current, usize::saturating_sub);
    Some(max.saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use plimsoll_kernels::{KvLayout, KvType};

    use super::*;

    fn shape() -> ModelShape {
        ModelShape {
            architecture: "llama",
            vocab: 320,
            max_context: 4096,
            kv: KvLayout { layers: 4, kv_heads: 2, head_dim: 16, kv_type: KvType::F16 },
            weight_bytes: 1000,
            activation_bytes: 200,
        }
    }

    #[test]
    fn a_plan_counts_every_byte() {
        let plan = MemoryPlan::new(&shape(), 30, 4096, PoolSize::Windows(2), None).unwrap();
        assert_eq!(plan.page_bytes, 2 * 4 * 2 * 16 * 2 * 32);
        assert_eq!(plan.pages, 256);
        assert_eq!(plan.total(), 1000 + 200 + 30 + 256 * plan.page_bytes);
    }

    #[test]
    fn a_window_of_partial_pages_is_rounded_up() {
        let plan = MemoryPlan::new(&shape(), 0, 33, PoolSize::Windows(1), None).unwrap();
        assert_eq!(plan.pages, 2);
    }

    #[test]
    fn a_pool_below_one_window_is_refused_with_the_numbers() {
        let error = MemoryPlan::new(&shape(), 0, 4096, PoolSize::Bytes(100 * 16384), None).unwrap_err();
        assert_eq!(
            error,
            PlanError::PoolBelowWindow {
                window: 4096,
                needed: 128,
                needed_bytes: 128 * 16384,
                pages: 100,
                pool_bytes: 100 * 16384
            }
        );
    }

    #[test]
    fn too_little_memory_is_refused_with_the_numbers() {
        let error = MemoryPlan::new(&shape(), 0, 4096, PoolSize::Windows(1), Some(1 << 20)).unwrap_err();
        assert!(matches!(error, PlanError::TooLittleMemory { needed: 2_098_352, available: 1_048_576, .. }), "{error}");
    }

    #[test]
    fn cached_files_are_no_used_memory_of_a_control_group() {
        let text = |text: &str| Some(text.to_owned());
        let stat = text("anon 100\ninactive_file 500\nactive_file 300\nfile 900\n");
        assert_eq!(group_available(text("1000\n"), text("950\n"), stat), Some(850));
        assert_eq!(group_available(text("1000\n"), text("950\n"), None), Some(50));
        assert_eq!(group_available(text("1000\n"), text("2000\n"), None), Some(0));
        assert_eq!(group_available(text("max\n"), text("950\n"), None), None);
    }

    #[test]
    fn a_window_beyond_the_model_is_refused() {
        let error = MemoryPlan::new(&shape(), 0, 4097, PoolSize::Windows(1), None).unwrap_err();
        assert_eq!(error, PlanError::WindowBeyondModel { window: 4097, supported: 4096 });
    }
}
