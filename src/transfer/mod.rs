//! Images in and out of the store: archives now, registries with them later. Must not know the command line.
