//! What people see: progress, tables, prompts, JSON events. Must not know stores or images.
