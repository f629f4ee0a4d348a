//! What checks find, and what they let pass.
