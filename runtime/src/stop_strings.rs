//! Stop strings in streamed text.
//!
//! Text is passed on up to the first stop string, which is not part of it. Held back is only the longest end of the text
//! that is the beginning of a stop string; everything before it can no longer become one. The idea is that of
//! TabbyAPI's `TagStreamParser`.
//!
//! Which match wins does not depend on how the text was cut: the one that is complete first, since streaming cannot take
//! back what it has decided. Among those that end at the same character the one that begins first wins (it contains the
//! others), and among equal strings the one that was given first.

/// Most stop strings of a request.
pub const MOST_STOP_STRINGS: usize = 16;

/// Stop strings that are not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StopStringsError {
    /// None at all: the caller leaves the stage out instead.
    #[error("the list of stop strings is empty; leave it out, or give 1 to {MOST_STOP_STRINGS}")]
    None,
    /// Too many.
    #[error("{0} stop strings were given, at most {MOST_STOP_STRINGS} are possible")]
    TooMany(usize),
    /// The empty string would stop at once.
    #[error("stop string {0} (counted from 0) is empty; each needs at least one character")]
    Empty(usize),
}

/// What came of a piece of text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopStep {
    /// Text that may be shown.
    pub text: String,
    /// The stop string that was met, as its place in the list. The text before it is complete; nothing follows.
    pub stopped: Option<usize>,
}

/// Looks for stop strings in one reply.
///
/// ```
/// use plimsoll_runtime::stop_strings::StopStrings;
///
/// let mut stops = StopStrings::new(vec!["\n\nUser:".into(), "END".into()])?;
/// assert_eq!(stops.feed("Done.\n").text, "Done.");
/// assert_eq!(stops.feed("And E").text, "\nAnd ");
/// let last = stops.feed("ND of it");
/// assert_eq!((last.text.as_str(), last.stopped), ("", Some(1)));
/// # Ok::<(), plimsoll_runtime::stop_strings::StopStringsError>(())
/// ```
#[derive(Clone, Debug)]
pub struct StopStrings {
    stops: Vec<String>,
    /// An end of the text that is a proper beginning of some stop string.
    held: String,
    /// Set once one was met.
    stopped: Option<usize>,
}

impl StopStrings {
    /// Looks for these strings.
    ///
    /// # Errors
    /// Unless there are 1 to [`MOST_STOP_STRINGS`], none of them empty.
    pub fn new(stops: Vec<String>) -> Result<Self, StopStringsError> {
        match stops.len() {
            0 => return Err(StopStringsError::None),
            n if n > MOST_STOP_STRINGS => return Err(StopStringsError::TooMany(n)),
            _ => {}
        }
        match stops.iter().position(String::is_empty) {
            Some(place) => Err(StopStringsError::Empty(place)),
            None => Ok(Self { stops, held: String::new(), stopped: None }),
        }
    }

    /// The strings, in the order given.
    #[must_use]
    pub fn strings(&self) -> &[String] {
        &self.stops
    }

    /// The text that may be shown once this piece has come. After a stop nothing comes out, and the stop is repeated.
    #[must_use]
    pub fn feed(&mut self, text: &str) -> StopStep {
        if self.stopped.is_some() {
            return StopStep { text: String::new(), stopped: self.stopped };
        }
        self.held.push_str(text);
        if let Some((begin, stop)) = first_match(&self.stops, &self.held) {
            self.stopped = Some(stop);
            self.held.truncate(begin);
            return StopStep { text: std::mem::take(&mut self.held), stopped: self.stopped };
        }
        let held = self.held.split_off(self.held.len() - undecided(&self.stops, &self.held));
        StopStep { text: std::mem::replace(&mut self.held, held), stopped: None }
    }

    /// The end of the reply: what was held back is text after all. Empty after a stop.
    #[must_use]
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Where the winning match begins, in bytes, and which stop string it is.
fn first_match(stops: &[String], text: &str) -> Option<(usize, usize)> {
    let found = stops.iter().enumerate().filter_map(|(place, stop)| text.find(stop.as_str()).map(|at| (at, place)));
    found.min_by_key(|&(at, place)| (at + stops[place].len(), at, place))
}

/// Length in bytes of the longest end of `text` that is a proper beginning of a stop string.
fn undecided(stops: &[String], text: &str) -> usize {
    let longest = stops.iter().map(|stop| stop.len() - 1).max().unwrap_or(0);
    let first = text.len().saturating_sub(longest);
    let starts = (first..text.len()).filter(|&start| text.is_char_boundary(start));
    let begins = |start: &usize| stops.iter().any(|stop| stop.starts_with(&text[*start..]));
    starts.into_iter().find(begins).map_or(0, |start| text.len() - start)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The naive twin: the whole text at once, one character longer each time.
    fn whole(stops: &[String], text: &str) -> (String, Option<usize>) {
        for end in (0..=text.len()).filter(|&end| text.is_char_boundary(end)) {
            let ends_here = |stop: &String| text[..end].ends_with(stop.as_str());
            let longest = stops.iter().filter(|stop| ends_here(stop)).map(String::len).max();
            if let Some(length) = longest {
                let which = stops.iter().position(|stop| stop.len() == length && ends_here(stop));
                return (text[..end - length].to_owned(), which);
            }
        }
        (text.to_owned(), None)
    }

    fn stream<'a>(stops: &[String], pieces: impl IntoIterator<Item = &'a str>) -> (String, Option<usize>) {
        let mut stage = StopStrings::new(stops.to_vec()).expect("accepted");
        let mut text = String::new();
        let mut stopped = None;
        for piece in pieces {
            let step = stage.feed(piece);
            assert!(stopped.is_none() || (step.text.is_empty() && step.stopped == stopped), "silent after a stop");
            text.push_str(&step.text);
            stopped = step.stopped;
        }
        text.push_str(&stage.finish());
        (text, stopped)
    }

    fn strings(stops: &[&str]) -> Vec<String> {
        stops.iter().map(|&stop| stop.to_owned()).collect()
    }

    #[test]
    fn a_stop_string_cut_at_every_position_is_found_and_never_leaks() {
        let text = "täxt 漢字 before<|stop|>after";
        for stop in ["<|stop|>", "<", "字 before<|", "漢字 before<|stop|>a"] {
            let stops = strings(&[stop]);
            let want = (text.split(stop).next().expect("one part").to_owned(), Some(0));
            for cut in (0..=text.len()).filter(|&cut| text.is_char_boundary(cut)) {
                assert_eq!(stream(&stops, [&text[..cut], &text[cut..]]), want, "{stop:?} cut at byte {cut}");
            }
        }
    }

    #[test]
    fn a_beginning_that_leads_nowhere_is_given_out_once() {
        let mut stage = StopStrings::new(strings(&["aab"])).expect("accepted");
        assert_eq!(stage.feed("xa").text, "x");
        assert_eq!(stage.feed("a").text, "");
        assert_eq!(stage.feed("a").text, "a", "the last two may still begin the stop string");
        assert_eq!(stage.feed("c").text, "aac");
        assert_eq!(stage.feed("aa").text, "");
        assert_eq!(stage.finish(), "aa", "a reply that ends inside a beginning loses nothing");
        assert_eq!(stage.finish(), "");
    }

    #[test]
    fn the_match_that_is_complete_first_wins_then_the_longer_then_the_first_given() {
        let stopped = |stops: &[&str], text| stream(&strings(stops), [text]);
        assert_eq!(stopped(&["abcd", "bc"], "xabcd"), ("xa".into(), Some(1)));
        assert_eq!(stopped(&["bc", "abc"], "xabcd"), ("x".into(), Some(1)));
        assert_eq!(stopped(&["abc", "abc"], "xabc"), ("x".into(), Some(0)));
    }

    #[test]
    fn text_after_a_stop_is_swallowed() {
        let mut stage = StopStrings::new(strings(&["."])).expect("accepted");
        assert_eq!(stage.feed("a.b"), StopStep { text: "a".into(), stopped: Some(0) });
        assert_eq!(stage.feed("c"), StopStep { text: String::new(), stopped: Some(0) });
        assert_eq!(stage.finish(), "");
    }

    #[test]
    fn the_number_and_the_emptiness_of_stop_strings_are_checked() {
        let error = |stops: Vec<String>| StopStrings::new(stops).expect_err("refused");
        assert_eq!(error(vec![]), StopStringsError::None);
        assert_eq!(error(vec!["x".into(); 17]), StopStringsError::TooMany(17));
        assert_eq!(error(strings(&["x", ""])), StopStringsError::Empty(1));
        assert!(StopStrings::new(vec!["x".into(); 16]).is_ok());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        #[test]
        fn however_the_text_is_cut_the_outcome_is_that_of_the_whole(
            stops in prop::collection::vec("[abé漢]{1,5}", 1..4),
            pieces in prop::collection::vec("[abé漢]{0,6}", 0..8),
        ) {
            let text: String = pieces.concat();
            let want = whole(&stops, &text);
            prop_assert_eq!(stream(&stops, pieces.iter().map(String::as_str)), want.clone());
            let characters: Vec<String> = text.chars().map(String::from).collect();
            prop_assert_eq!(stream(&stops, characters.iter().map(String::as_str)), want);
        }

        #[test]
        fn nothing_is_held_back_that_cannot_become_a_stop_string(
            stops in prop::collection::vec("[ab]{1,5}", 1..4),
            pieces in prop::collection::vec("[ab]{1,3}", 1..8),
        ) {
            let mut stage = StopStrings::new(stops.clone()).expect("accepted");
            for piece in &pieces {
                let _ = stage.feed(piece);
                let held = &stage.held;
                prop_assert!(held.is_empty() || stops.iter().any(|s| s.starts_with(held) && s.len() > held.len()));
            }
        }
    }
}
