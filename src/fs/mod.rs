//! File access that cannot be led astray: directory-relative, symlink-safe, atomic, locked.
