//! The window as a contract, in exact integers.
//!
//! Every token the engine may ever need for a request is set aside before the request is admitted. All counts are exact
//! token counts of the rendered prompt, all comparisons with a threshold are `>=`, and shares of the window are
//! `floor(window * ratio)` with the ratio held as an exact decimal.
//!
//! - [`ratio`](Ratio): exact decimals; [`tokens`](Tokens): counts.
//! - [`config`](BudgetConfig): what a preset says.
//! - [`resolve`](Budget): from the configuration and a window to token counts, or a refusal with the numbers.
//! - [`absolute`](AbsoluteThresholds): the policy that subtracts fixed amounts, for people who come from tools that do.
//! - [`admission`](Admission): what a request is granted, and the price of a summary.
//! - [`level`](Level): zones and advisory levels.
//! - [`sliders`](Sliders): ratios that are moved by hand and stay valid.
//! - [`meter`](Meter): the numbers as they are published, and the window drawn as a bar.

mod absolute;
mod admission;
mod config;
mod level;
mod meter;
mod ratio;
mod resolve;
mod sliders;
mod tokens;

pub use absolute::{
    AbsoluteThresholds, BLOCKING_BUFFER, COMPACTION_BUFFER, MOST_SUMMARY_OUTPUT, PercentOverride, WARNING_BUFFER,
};
pub use admission::{Admission, Overflow, SummaryTooSmall};
pub use config::{BudgetConfig, Policy};
pub use level::{Counted, DEFAULT_EMERGENCY, Level, LevelError, Usage, Zone};
pub use meter::{Counts, LastCompaction, Meter, Reserved, Thresholds};
pub use ratio::{Ratio, RatioError};
pub use resolve::{AutomaticCompaction, Budget, BudgetError, BudgetWarning, LEAST_SUMMARY, SMALLEST_WINDOW};
pub use sliders::{FIRST_WINDOW, LARGEST_WINDOW, Slider, Sliders, WINDOW_STEP};
pub use tokens::Tokens;
