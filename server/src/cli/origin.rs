//! The words for where a model is, as commands print them.

use plimsoll_models::source::Origin;

/// One word for the place a model came from.
pub(super) fn origin_word(origin: Origin) -> &'static str {
    match origin {
        Origin::Path => "path",
        Origin::Store => "store",
        Origin::HubCache => "hugging-face-cache",
        Origin::Hub => "hub",
        Origin::Wheel => "wheel",
    }
}
