//! Templates in the Go dialect, with the functions cluster images use. Must not know where texts come from.
