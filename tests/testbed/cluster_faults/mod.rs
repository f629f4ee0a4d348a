//! What goes wrong with hosts, images and scripts: every fault ends with an exit code and an error
//! that names the host, the step, the log and what to do next, and the same command ends well when
//! the fault is gone.

mod checks;
mod hostile;
mod installed_anew;
mod logins;
mod loss;
mod same_name;
mod scripts;
mod support;
mod twice;
mod variables;
