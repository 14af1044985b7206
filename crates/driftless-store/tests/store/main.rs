//! What streams promise, on stores that are right, slow, broken, crashed or hostile. One program, so that it is linked
//! once.

mod clocks;
mod conformance;
mod crash;
mod faults;
mod hostile;
mod http;
mod local;
mod tls;
