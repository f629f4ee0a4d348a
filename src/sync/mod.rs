//! Brings images to hosts: who lacks what, who gets it from whom, and the switch to it.
//!
//! Must not know pipelines. Plans are values; [`execute`] does what [`plan`] says.
