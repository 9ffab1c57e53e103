//! How a model family writes tool calls and reasoning.
