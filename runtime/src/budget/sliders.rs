//! Ratios that are moved by hand and stay valid.
//!
//! A slider that is moved gets its value, within its range and on its step; the others yield just enough that every
//! window can be resolved: the thresholds keep a gap of 0.01 to each other, and compaction, response, summary and safety
//! together stay within 0.99. Values that nobody moved keep all their decimals, on a step or not.
//!
//! Who yields: thresholds are pushed along by the one that moves. Where the sum is too large, a moved threshold takes from
//! the response, then the summary, then the safety; a moved reserve takes from the compaction threshold (which pushes
//! the other two), then from the other reserves in that order.

use super::config::DEFAULT_RATIOS;
use super::{BudgetConfig, Ratio, SMALLEST_WINDOW, Tokens};

/// The largest window a slider offers, in tokens.
pub const LARGEST_WINDOW: Tokens = Tokens(1_048_576);

/// Step of the window's slider, in tokens.
pub const WINDOW_STEP: Tokens = Tokens(1024);

/// Where the window's slider begins, in tokens; smaller windows, from [`SMALLEST_WINDOW`], can be typed in.
pub const FIRST_WINDOW: Tokens = Tokens(16_384);

/// Ratios are moved in whole units of `10^-19`, the finest a [`Ratio`] can hold.
const DECIMALS: u32 = 19;
/// 0.001, the step of the ratios.
const STEP: u64 = 10u64.pow(DECIMALS - 3);
/// 0.01: the gap between thresholds, and the least of every ratio but `summary_min`.
const HUNDREDTH: u64 = 10 * STEP;
/// The most that compaction and the reserves may take together.
const MOST_IN_ALL: u64 = 99 * HUNDREDTH;

/// One of the ratios.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the quantities are explained by the table in `Budget`")]
pub enum Slider {
    Economy,
    Checkpoint,
    Compaction,
    Response,
    Summary,
    SummaryMin,
    Safety,
    Retain,
}

use Slider::{Checkpoint, Compaction, Economy, Response, Retain, Safety, Summary, SummaryMin};

impl Slider {
    /// All of them.
    pub const ALL: [Self; 8] = [Economy, Checkpoint, Compaction, Response, Summary, SummaryMin, Safety, Retain];

    /// Least and greatest value, in units: what the gaps and the sum leave when everything else has yielded.
    const fn range(self) -> (u64, u64) {
        let (least, most) = match self {
            Economy => (10, 930),
            Checkpoint => (20, 940),
            Compaction => (30, 950),
            // The thresholds need 0.03 and each other reserve 0.01.
            Response | Summary | Safety => (10, 940),
            SummaryMin => (1, 940),
            Retain => (10, 500),
        };
        (least * STEP, most * STEP)
    }
}

/// A window and eight ratios.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sliders {
    window: Tokens,
    /// In units, by [`Slider`].
    units: [u64; 8],
}

impl Sliders {
    /// The default ratios for a window.
    #[must_use]
    pub fn new(window: Tokens) -> Self {
        let units = DEFAULT_RATIOS.map(|ratio| to_units(ratio).expect("the defaults are below 1"));
        Self { window: window.clamp(SMALLEST_WINDOW, LARGEST_WINDOW), units }
    }

    /// The ratios of a configuration, its defaults where it gives none; its token values take no part. `None` if a ratio
    /// is not between 0 and 1.
    #[must_use]
    pub fn of(window: Tokens, config: &BudgetConfig) -> Option<Self> {
        let mut sliders = Self::new(window);
        for (units, quantity) in sliders.units.iter_mut().zip(config.quantities()) {
            *units = to_units(quantity.ratio.unwrap_or(quantity.default))?;
        }
        Some(sliders)
    }

    /// The window, in tokens.
    #[must_use]
    pub fn window(&self) -> Tokens {
        self.window
    }

    /// The value of a slider.
    #[must_use]
    pub fn ratio(&self, slider: Slider) -> Ratio {
        Ratio::new(self.units[slider as usize], DECIMALS)
    }

    /// Least and greatest value a slider can be moved to.
    #[must_use]
    pub fn range(slider: Slider) -> (Ratio, Ratio) {
        let (least, most) = slider.range();
        (Ratio::new(least, DECIMALS), Ratio::new(most, DECIMALS))
    }

    /// Moves the window to the nearest step of its slider.
    pub fn move_window(&mut self, to: Tokens) {
        let steps = (to.clamp(FIRST_WINDOW, LARGEST_WINDOW).0 + WINDOW_STEP.0 / 2) / WINDOW_STEP.0;
        self.window = Tokens(steps * WINDOW_STEP.0);
    }

    /// Moves a slider to the nearest step in its range and lets the others yield.
    pub fn move_to(&mut self, slider: Slider, to: Ratio) {
        let (least, most) = slider.range();
        let units = to_units(to).map_or(most, |units| units.saturating_add(STEP / 2) / STEP * STEP);
        self.set(slider, units.clamp(least, most));
        // What was stored may lie outside of the ranges; from the first move on everything is within.
        for other in Slider::ALL {
            let (least, most) = other.range();
            self.set(other, self.get(other).clamp(least, most));
        }
        match slider {
            SummaryMin => self.set(Summary, self.get(Summary).max(self.get(SummaryMin))),
            Retain => {}
            _ => self.set(SummaryMin, self.get(SummaryMin).min(self.get(Summary))),
        }
        self.keep_gaps(slider);
        let yields: &[Slider] = match slider {
            Economy | Checkpoint | Compaction => &[Response, Summary, Safety],
            Response => &[Compaction, Summary, Safety],
            Summary | SummaryMin => &[Compaction, Response, Safety],
            Safety => &[Compaction, Response, Summary],
            Retain => &[Response, Summary, Safety, Compaction],
        };
        for &other in yields {
            // Before the others have yielded the sum may not fit 64 bits.
            let sum: u128 = [Compaction, Response, Summary, Safety].iter().map(|s| u128::from(self.get(*s))).sum();
            let excess = u64::try_from(sum.saturating_sub(MOST_IN_ALL.into())).unwrap_or(u64::MAX);
            self.set(other, self.get(other).saturating_sub(excess).max(other.range().0));
        }
        self.keep_gaps(if slider == Economy || slider == Checkpoint { slider } else { Compaction });
        self.set(SummaryMin, self.get(SummaryMin).min(self.get(Summary)));
    }

    /// Pushes the thresholds apart, away from the one that stays.
    fn keep_gaps(&mut self, stays: Slider) {
        let up = |s: &mut Self, from, to| s.set(to, s.get(to).max(s.get(from) + HUNDREDTH));
        let down = |s: &mut Self, from, to| s.set(to, s.get(to).min(s.get(from) - HUNDREDTH));
        match stays {
            Economy => {
                up(self, Economy, Checkpoint);
                up(self, Checkpoint, Compaction);
            }
            Checkpoint => {
                down(self, Checkpoint, Economy);
                up(self, Checkpoint, Compaction);
            }
            _ => {
                down(self, Compaction, Checkpoint);
                down(self, Checkpoint, Economy);
            }
        }
    }

    fn get(&self, slider: Slider) -> u64 {
        self.units[slider as usize]
    }

    fn set(&mut self, slider: Slider, units: u64) {
        self.units[slider as usize] = units;
    }

    /// The sliders as a configuration of the ratio policy.
    #[must_use]
    pub fn config(&self) -> BudgetConfig {
        let ratio = |slider| Some(self.ratio(slider));
        BudgetConfig {
            window: Some(self.window),
            economy_ratio: ratio(Economy),
            checkpoint_ratio: ratio(Checkpoint),
            compaction_ratio: ratio(Compaction),
            response_ratio: ratio(Response),
            summary_ratio: ratio(Summary),
            summary_min_ratio: ratio(SummaryMin),
            safety_ratio: ratio(Safety),
            retain_ratio: ratio(Retain),
            ..BudgetConfig::default()
        }
    }
}

/// A ratio below 1 in units.
fn to_units(ratio: Ratio) -> Option<u64> {
    let (numerator, denominator) = ratio.fraction();
    // The denominator divides 10^19, and the result stays below it.
    (numerator < denominator).then(|| numerator * (10u64.pow(DECIMALS) / denominator))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::budget::Budget;

    fn ratio(text: &str) -> Ratio {
        text.parse().expect("a ratio")
    }

    fn moved(slider: Slider, to: &str) -> Sliders {
        let mut sliders = Sliders::new(Tokens(64_000));
        sliders.move_to(slider, ratio(to));
        sliders
    }

    #[test]
    fn a_slider_that_disturbs_nobody_moves_alone_and_the_rest_keeps_its_decimals() {
        let sliders = moved(Economy, "0.4004");
        assert_eq!(sliders.ratio(Economy), ratio("0.4"));
        for slider in Slider::ALL.into_iter().filter(|s| *s != Economy) {
            assert_eq!(sliders.ratio(slider), Sliders::new(Tokens(64_000)).ratio(slider), "{slider:?}");
        }
        assert_eq!(sliders.ratio(SummaryMin), ratio("0.0078125"));
    }

    #[test]
    fn thresholds_are_pushed_along() {
        let up = moved(Economy, "0.65");
        assert_eq!((up.ratio(Checkpoint), up.ratio(Compaction)), (ratio("0.66"), ratio("0.7")));
        let down = moved(Compaction, "0.3");
        assert_eq!((down.ratio(Checkpoint), down.ratio(Economy)), (ratio("0.29"), ratio("0.28")));
    }

    #[test]
    fn a_late_compaction_takes_from_the_response_first() {
        let sliders = moved(Compaction, "0.8");
        assert_eq!(sliders.ratio(Response), ratio("0.09625"));
        assert_eq!(sliders.ratio(Summary), ratio("0.0625"));
        let last = moved(Compaction, "0.95");
        assert_eq!([Response, Summary, Safety].map(|s| last.ratio(s)), ["0.01", "0.01", "0.02"].map(ratio));
    }

    #[test]
    fn a_large_reply_moves_the_compaction_forward() {
        let sliders = moved(Response, "0.5");
        assert_eq!(
            [Compaction, Checkpoint, Economy].map(|s| sliders.ratio(s)),
            ["0.39625", "0.38625", "0.37625"].map(ratio)
        );
    }

    #[test]
    fn reserves_that_ask_for_almost_everything_in_turn_leave_the_others_their_least() {
        let mut sliders = moved(Summary, "0.865");
        sliders.move_to(Response, ratio("0.94"));
        let values = [Economy, Checkpoint, Compaction, Summary, Safety].map(|s| sliders.ratio(s));
        assert_eq!(values, ["0.01", "0.02", "0.03", "0.01", "0.01"].map(ratio));
    }

    #[test]
    fn values_outside_of_a_range_stop_at_its_end() {
        assert_eq!(moved(Compaction, "7").ratio(Compaction), ratio("0.95"));
        assert_eq!(moved(Retain, "0.9").ratio(Retain), ratio("0.5"));
        assert_eq!(moved(SummaryMin, "0").ratio(SummaryMin), ratio("0.001"));
        let mut sliders = Sliders::new(Tokens(4096));
        assert_eq!(sliders.window(), Tokens(4096), "a stored window may be smaller than the slider's first");
        sliders.move_window(Tokens(64_000));
        assert_eq!(sliders.window(), Tokens(64_512));
        sliders.move_window(Tokens(u32::MAX));
        assert_eq!(sliders.window(), LARGEST_WINDOW);
        sliders.move_window(Tokens(0));
        assert_eq!(sliders.window(), FIRST_WINDOW);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn however_the_sliders_are_moved_the_budget_is_valid(
            window in 0u32..2_000_000,
            moves in prop::collection::vec((0usize..8, 0u64..1100), 1..12),
        ) {
            let mut sliders = Sliders::new(Tokens(window));
            for (which, thousandths) in moves {
                let slider = Slider::ALL[which];
                sliders.move_to(slider, Ratio::new(thousandths, 3));
                let (least, most) = Sliders::range(slider);
                prop_assert_eq!(sliders.ratio(slider), Ratio::new(thousandths, 3).clamp(least, most), "{:?}", slider);
                let sum: u64 = [Compaction, Response, Summary, Safety].iter().map(|s| sliders.get(*s)).sum();
                prop_assert!(sum <= MOST_IN_ALL);
                prop_assert!(sliders.get(Economy) + HUNDREDTH <= sliders.get(Checkpoint));
                prop_assert!(sliders.get(Checkpoint) + HUNDREDTH <= sliders.get(Compaction));
                let budget = Budget::resolve(None, &sliders.config());
                prop_assert!(budget.is_ok(), "{:?}", budget);
            }
        }
    }
}
