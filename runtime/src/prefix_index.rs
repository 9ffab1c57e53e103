//! Which tokens are cached on which pages.
