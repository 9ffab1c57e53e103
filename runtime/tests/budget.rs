//! The promises of the budget: every line of the vectors, the invariants for any window, the borders of admission.

use plimsoll_runtime::budget::{
    AutomaticCompaction, Budget, BudgetConfig, BudgetError, BudgetWarning, Counted, Level, PercentOverride, Policy,
    Ratio, Tokens, Usage,
};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn vectors() -> Value {
    serde_json::from_str(include_str!("vectors/budget.json")).expect("the vectors are JSON")
}

fn cases<'a>(vectors: &'a Value, path: &str) -> &'a [Value] {
    let cases = vectors.pointer(path).and_then(Value::as_array).expect("a list of cases");
    assert!(!cases.is_empty());
    cases
}

fn number(case: &Value, key: &str) -> u32 {
    case[key].as_u64().and_then(|n| u32::try_from(n).ok()).unwrap_or_else(|| panic!("{key} in {case}"))
}

/// A case's keys, without the expectations, as the file of a preset.
fn config(case: &Value, without: &[&str]) -> Result<BudgetConfig, serde_json::Error> {
    let keys: Map<String, Value> =
        case.as_object().expect("an object").clone().into_iter().filter(|(k, _)| !without.contains(&&**k)).collect();
    serde_json::from_value(Value::Object(keys))
}

fn default_budget(window: u32) -> Budget {
    Budget::resolve(Some(Tokens(window)), &BudgetConfig::default()).expect("the defaults are valid")
}

/// The windows of the two presets; both use the default ratios.
fn preset(name: &Value) -> Budget {
    match name.as_str() {
        Some("local-robust-9b") => default_budget(131_072),
        Some("local-robust-27b") => default_budget(64_000),
        other => panic!("no preset {other:?}"),
    }
}

#[test]
fn the_default_ratios_give_the_tokens_of_the_vectors() {
    let vectors = vectors();
    for case in cases(&vectors, "/cases") {
        let budget = default_budget(number(case, "window"));
        let found = serde_json::to_value(&budget).expect("json");
        for (key, want) in case.as_object().expect("an object") {
            assert_eq!(&found[key], want, "{key} of {case}");
        }
        assert_eq!(budget.effective.0, budget.window.0 - budget.summary.0 - budget.safety.0);
    }
}

#[test]
fn the_default_ratios_are_those_of_the_vectors() {
    let vectors = vectors();
    let defaults = vectors["default_ratios"].as_object().expect("an object");
    let written: Map<String, Value> = defaults.iter().map(|(k, v)| (format!("{k}_ratio"), v.clone())).collect();
    let written = config(&Value::Object(written), &[]).expect("known keys");
    for window in [2048, 2570, 8191, 64_000, 131_072] {
        assert_eq!(Budget::resolve(Some(Tokens(window)), &written), Ok(default_budget(window)));
    }
}

#[test]
fn what_the_vectors_reject_is_refused_with_the_numbers() {
    let vectors = vectors();
    let mut refusals = Vec::new();
    for case in cases(&vectors, "/rejected") {
        let refusal = match config(case, &["why"]) {
            Err(error) => error.to_string(),
            Ok(config) => Budget::resolve(None, &config).expect_err("rejected").to_string(),
        };
        refusals.push(refusal);
    }
    let sum = "compaction 46080 + response 12000 + summary 4000 + safety 2000 = 64080, expected less than the window \
               64000; lower one of them by 81 tokens in all";
    assert_eq!(refusals[0], sum);
    assert_eq!(
        refusals[1],
        "economy 500, checkpoint 400, compaction 44800: expected 0 < economy < checkpoint < compaction"
    );
    assert_eq!(refusals[2], sum);
    assert_eq!(refusals[3], "compaction_ratio is 1, expected a number above 0 and below 1");
    assert_eq!(refusals[4], "no window is given; shares of the window need one (set window, in tokens)");
    assert!(refusals[5].starts_with("unknown field `sumary_ratio`"), "{}", refusals[5]);
    assert_eq!(refusals.len(), 6);
}

#[test]
fn a_ratio_wins_over_tokens_given_beside_it() {
    let vectors = vectors();
    for case in cases(&vectors, "/accepted") {
        let budget = Budget::resolve(None, &config(case, &["compaction"]).expect("known keys")).expect("accepted");
        assert_eq!(budget.compaction.0, number(case, "compaction"));
    }
}

#[test]
fn the_remaining_invariants_are_refused_with_the_numbers() {
    let refusal = |keys: Value| Budget::resolve(None, &config(&keys, &[]).expect("known keys")).expect_err("refused");
    assert_eq!(refusal(json!({"window": 2047})), BudgetError::WindowTooSmall { window: Tokens(2047) });
    let refused = refusal(json!({"window": 64000, "summary_min_tokens": 4001}));
    assert_eq!(refused.to_string(), "summary_min 4001, summary 4000: expected 0 < summary_min <= summary");
    for keys in [
        json!({"window": 64000, "summary_min_tokens": 0}),
        json!({"window": 64000, "response_tokens": 0}),
        json!({"window": 64000, "economy_tokens": 0}),
        json!({"window": 64000, "economy_ratio": 0.0}),
        json!({"window": 64000, "economy_tokens": 40000}),
        json!({"window": 64000, "checkpoint_tokens": 44800}),
        json!({"window": 64000, "compaction_tokens": 46000}),
        json!({"window": 64000, "response_tokens": 4_294_967_295u32}),
        json!({"window": 64000, "retain_tokens": 64000}),
        json!({"window": 64000, "max_output": 8192}),
        json!({"window": 64000, "policy": "absolute"}),
        json!({"window": 64000, "policy": "absolute", "max_output": 0}),
        json!({"window": 64000, "policy": "absolute", "max_output": 8192, "economy_ratio": 0.5}),
        json!({"window": 8192, "policy": "absolute", "max_output": 8192}),
    ] {
        let _ = refusal(keys);
    }
    // One token below the strict inequality.
    assert!(
        Budget::resolve(None, &config(&json!({"window": 64000, "compaction_tokens": 45999}), &[]).unwrap()).is_ok()
    );
    for malformed in [
        json!({"window": 64000.5}),
        json!({"window": -1}),
        json!({"window": "64000"}),
        json!({"economy_ratio": -0.5}),
        json!({"economy_ratio": "0.5"}),
        json!({"policy": "relative"}),
    ] {
        assert!(config(&malformed, &[]).is_err(), "{malformed}");
    }
}

#[test]
fn automatic_compaction_needs_a_summary_of_256_tokens() {
    assert!(default_budget(4096).automatic_compaction.is_on());
    let small = default_budget(4095).automatic_compaction;
    assert_eq!(small, AutomaticCompaction::SummaryTooSmall { summary: Tokens(255), needed: Tokens(256) });
    assert_eq!(small.to_string(), "off: it needs a summary of 256 tokens, this window has 255");
    let off = config(&json!({"window": 8192, "automatic_compaction": false}), &[]).expect("known keys");
    assert_eq!(Budget::resolve(None, &off).expect("valid").automatic_compaction, AutomaticCompaction::Off);
}

#[test]
fn a_summary_is_priced_as_the_vectors_say() {
    let vectors = vectors();
    let group = &vectors["summary_cap"];
    let budget = default_budget(number(group, "window"));
    assert_eq!(
        [budget.summary.0, budget.summary_min.0, budget.safety.0],
        [number(group, "summary"), number(group, "summary_min"), number(group, "safety")]
    );
    for case in cases(&vectors, "/summary_cap/cases") {
        let found = budget.summary_cap(Tokens(number(case, "input")), budget.window, None).ok().map(|cap| cap.0);
        assert_eq!(json!(found), case["cap"], "{case}");
    }
    let capped = |capacity, most: Option<u32>| budget.summary_cap(Tokens(44_800), Tokens(capacity), most.map(Tokens));
    assert_eq!(capped(64_000, Some(1000)), Ok(Tokens(1000)));
    assert_eq!(capped(u32::MAX, None), Ok(Tokens(4000)), "the window bounds the engine's capacity");
    assert_eq!(capped(48_000, None), Ok(Tokens(1199)));
    let refused = capped(64_000, Some(499)).expect_err("less than the least summary");
    assert_eq!((refused.cap, refused.summary_min), (Tokens(499), Tokens(500)));
}

#[test]
fn the_absolute_policy_gives_the_thresholds_of_the_vectors() {
    let vectors = vectors();
    for case in cases(&vectors, "/absolute") {
        let token = |key: &str| case.get(key).map(|_| Tokens(number(case, key)));
        let config = BudgetConfig {
            policy: Policy::Absolute,
            max_output: token("max_output"),
            cap: token("cap"),
            percent: case.get("pct").map(|percent| PercentOverride::new(percent.to_string())),
            ..BudgetConfig::default()
        };
        let budget = Budget::resolve(token("window"), &config);
        // The budget does without automatic compaction where the window is too small for it; the thresholds are the same.
        let budget = budget.unwrap_or_else(|error| panic!("{case}: {error}"));
        let expect = &case["expect"];
        assert_eq!(budget.effective.0, number(expect, "effective"), "{case}");
        assert_eq!(budget.compaction.0, number(expect, "compaction"), "{case}");
        assert_eq!(budget.blocking, Some(Tokens(number(expect, "blocking"))), "{case}");
        let warning = if number(expect, "warning") == 0 { budget.compaction.0 } else { number(expect, "warning") };
        assert_eq!((budget.economy.0, budget.checkpoint.0), (warning, warning), "{case}");
    }
}

#[test]
fn the_absolute_policy_says_what_has_no_effect_and_what_is_off() {
    let resolve = |keys: Value| Budget::resolve(None, &config(&keys, &[]).expect("known keys")).expect("accepted");
    for percent in [json!(0), json!(-5), json!(100.5), json!("half")] {
        let found = percent.as_str().map_or_else(|| percent.to_string(), str::to_owned);
        let budget = resolve(json!({"policy": "absolute", "window": 200_000, "max_output": 32000, "percent": percent}));
        assert_eq!(budget.warnings, [BudgetWarning::PercentIgnored { found }]);
        assert_eq!(budget.compaction, Tokens(167_000));
    }
    let small = resolve(json!({"policy": "absolute", "window": 16384, "max_output": 4096}));
    assert_eq!(
        small.automatic_compaction,
        AutomaticCompaction::WindowTooSmall { effective: Tokens(12_288), needed: Tokens(13_000) }
    );
    let blocking = resolve(json!({"policy": "absolute", "window": 200_000, "max_output": 32000, "blocking": 1000}));
    assert!(blocking.admit(Tokens(999), None, Tokens(0)).is_ok());
    assert_eq!(blocking.admit(Tokens(1000), None, Tokens(0)).expect_err("blocked").limit, Tokens(999));
}

#[test]
fn zones_begin_where_the_vectors_say() {
    let vectors = vectors();
    let budget = preset(&vectors["zones"]["preset"]);
    for case in cases(&vectors, "/zones/cases") {
        assert_eq!(budget.zone(Tokens(number(case, "tokens"))).name(), case["zone"], "{case}");
    }
}

#[test]
fn levels_are_those_of_the_vectors() {
    let vectors = vectors();
    for case in cases(&vectors, "/levels") {
        let emergency: Ratio = case["emergency"].to_string().parse().expect("a ratio");
        let counted = if case["measured"] == true { Counted::Measured } else { Counted::Estimated };
        let usage = case["usage"].to_string().parse::<Ratio>().ok();
        let level = usage.and_then(|usage| Level::of(Usage::from(usage), emergency, counted).ok());
        assert_eq!(level.map_or("error", Level::name), case["level"], "{case}");
    }
}

#[test]
fn a_level_is_exact_at_its_border() {
    let level = |tokens, effective| {
        Level::of(Usage::of(Tokens(tokens), Tokens(effective)), "0.8".parse().unwrap(), Counted::Measured)
    };
    // 0.8 * 7425 = 5940 exactly; in binary floats 5940 / 7425 may fall on either side.
    assert_eq!((level(5939, 7425), level(5940, 7425)), (Ok(Level::Critical), Ok(Level::Emergency)));
    assert!(level(7426, 7425).is_err());
}

#[test]
fn max_tokens_is_clamped_as_the_vectors_say_and_the_clamp_is_reported() {
    let vectors = vectors();
    for case in cases(&vectors, "/max_tokens") {
        let requested = number(case, "requested");
        let admission = preset(&case["preset"]).admit(Tokens(100), Some(requested), Tokens(200)).expect("fits");
        assert_eq!(admission.granted, number(case, "granted"), "{case}");
        assert_eq!(admission.clamped_from, (requested != admission.granted).then_some(requested));
    }
}

#[test]
fn around_the_limit_every_prompt_gets_exactly_what_is_left() {
    for window in [2048, 4096, 8192, 64_000, 131_072] {
        let budget = default_budget(window);
        for instruction in [0, 1, 181] {
            let admit = |prompt, requested| budget.admit(Tokens(prompt), requested, Tokens(instruction));
            let limit = window - instruction - budget.summary.0 - budget.safety.0 - 2;
            for requested in [None, Some(0), Some(1), Some(2), Some(i32::MAX as u32), Some(u32::MAX)] {
                let wanted = requested.unwrap_or(budget.response.0).max(1);
                for (prompt, left) in [(limit - 2, 3), (limit - 1, 2), (limit, 1)] {
                    let granted = admit(prompt, requested).expect("fits").granted;
                    assert_eq!(granted, wanted.min(left), "window {window} prompt {prompt} requested {requested:?}");
                }
                for prompt in [limit + 1, limit + 2, window - 1, window, window + 1, u32::MAX] {
                    let overflow = admit(prompt, requested).expect_err("too long");
                    assert_eq!((overflow.prompt.0, overflow.limit.0), (prompt, limit));
                }
            }
        }
    }
}

#[test]
fn a_request_of_exactly_the_maximum_is_granted_and_one_more_token_is_clamped() {
    let budget = default_budget(8192);
    let prompt = Tokens(7000);
    let room = 8192 - 181 - 512 - 256 - 7000 - 1;
    let exact = budget.admit(prompt, Some(room), Tokens(181)).expect("fits");
    assert_eq!((exact.granted, exact.clamped_from), (room, None));
    let more = budget.admit(prompt, Some(room + 1), Tokens(181)).expect("fits");
    assert_eq!((more.granted, more.clamped_from), (room, Some(room + 1)));
}

#[test]
fn the_summary_is_set_aside_from_the_reply_on_that_may_reach_the_compaction() {
    let budget = default_budget(8192);
    let reserve =
        |prompt, budget: &Budget| budget.admit(Tokens(prompt), Some(100), Tokens(181)).expect("fits").reserve_beyond;
    assert_eq!((reserve(5633, &budget), reserve(5634, &budget)), (0, 181 + 512));
    let off = budget.without_automatic_compaction();
    assert_eq!(reserve(5634, &off), 0);
}

proptest! {
    #[test]
    fn the_default_ratios_are_valid_for_every_window(window in 2048u32..=4_294_967_295) {
        let b = default_budget(window);
        prop_assert!(Tokens(0) < b.economy && b.economy < b.checkpoint && b.checkpoint < b.compaction);
        let sum: u64 = [b.compaction, b.response, b.summary, b.safety].iter().map(|t| u64::from(t.0)).sum();
        prop_assert!(sum < u64::from(window));
        prop_assert!(Tokens(0) < b.summary_min && b.summary_min <= b.summary);
    }

    #[test]
    fn whatever_is_accepted_keeps_the_invariants_and_nothing_panics(
        window in prop::option::of(0u32..300_000),
        tokens in prop::collection::vec(prop::option::of(0u32..100_000), 8),
        ratios in prop::collection::vec(prop::option::weighted(0.3, 0u64..1100), 8),
    ) {
        let names = ["economy", "checkpoint", "compaction", "response", "summary", "summary_min", "safety", "retain"];
        let mut keys = Map::new();
        for (i, name) in names.iter().enumerate() {
            if let Some(tokens) = tokens[i] {
                keys.insert(format!("{name}_tokens"), json!(tokens));
            }
            if let Some(thousandths) = ratios[i] {
                keys.insert(format!("{name}_ratio"), json!(thousandths as f64 / 1000.0));
            }
        }
        let config = config(&Value::Object(keys), &[]).expect("known keys");
        if let Ok(b) = Budget::resolve(window.map(Tokens), &config) {
            prop_assert!(Tokens(0) < b.economy && b.economy < b.checkpoint && b.checkpoint < b.compaction);
            prop_assert!(u64::from(b.compaction.0) + u64::from(b.response.0) + u64::from(b.summary.0)
                + u64::from(b.safety.0) < u64::from(b.window.0));
            prop_assert!(Tokens(0) < b.summary_min && b.summary_min <= b.summary);
            for (i, found) in [b.economy, b.checkpoint, b.compaction].iter().enumerate() {
                if let Some(thousandths) = ratios[i] {
                    prop_assert_eq!(u64::from(found.0), u64::from(b.window.0) * thousandths / 1000);
                } else if let Some(tokens) = tokens[i] {
                    prop_assert_eq!(found.0, tokens);
                }
            }
        }
    }

    #[test]
    fn what_is_admitted_fits_the_window_with_everything_that_may_follow(
        window in 2048u32..200_000,
        prompt in 0u32..210_000,
        requested in prop::option::of(any::<u32>()),
        instruction in 0u32..1000,
    ) {
        let b = default_budget(window);
        match b.admit(Tokens(prompt), requested, Tokens(instruction)) {
            Ok(admission) => {
                let used = prompt + admission.granted + instruction + b.summary.0 + b.safety.0;
                prop_assert!(used < window);
                prop_assert!(admission.granted >= 1 && admission.granted <= b.response.0);
                // The compaction that may follow is affordable in full.
                let live = Tokens(prompt + admission.granted + instruction);
                prop_assert_eq!(b.summary_cap(live, b.window, None), Ok(b.summary));
            }
            Err(overflow) => {
                prop_assert!(overflow.limit.0 < prompt);
                prop_assert!(overflow.limit.0 == 0 || b.admit(overflow.limit, None, Tokens(instruction)).unwrap().granted == 1);
            }
        }
    }

    #[test]
    fn a_priced_summary_always_fits(window in 2048u32..200_000, input in 0u32..210_000, capacity in 0u32..210_000) {
        let b = default_budget(window);
        if let Ok(cap) = b.summary_cap(Tokens(input), Tokens(capacity), None) {
            prop_assert!(cap >= b.summary_min);
            prop_assert!(input + cap.0 + b.safety.0 < capacity.min(window));
        }
    }

    #[test]
    fn the_absolute_policy_never_panics(
        window in 2048u32..2_000_000,
        max_output: u32,
        cap in prop::option::of(any::<u32>()),
        percent in prop::option::of("[0-9.-]{0,6}"),
        blocking in prop::option::of(any::<u32>()),
        prompt: u32,
        automatic: bool,
    ) {
        let config = BudgetConfig {
            policy: Policy::Absolute,
            max_output: Some(Tokens(max_output)),
            cap: cap.map(Tokens),
            percent: percent.map(PercentOverride::new),
            blocking: blocking.map(Tokens),
            automatic_compaction: Some(automatic),
            ..BudgetConfig::default()
        };
        if let Ok(b) = Budget::resolve(Some(Tokens(window)), &config) {
            prop_assert!(b.economy <= b.compaction && b.compaction <= b.effective && b.effective < b.window);
            prop_assert!(!b.automatic_compaction.is_on() || b.compaction > Tokens(0));
            if let Ok(admission) = b.admit(Tokens(prompt), None, Tokens(100)) {
                prop_assert!(u64::from(prompt) + u64::from(admission.granted) < u64::from(b.window.0));
            }
        }
    }
}
