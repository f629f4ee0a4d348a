//! Tables of expansions.
