//! The naive twins of the ops: obviously right, slow, the oracle of the property tests.
