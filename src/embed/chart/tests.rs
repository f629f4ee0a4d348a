//! Small charts against what `helm template` (3.17) makes of them.
