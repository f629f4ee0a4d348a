//! Layers: an ordered stream of entries to tar + compression + digests in one pass, and back.
