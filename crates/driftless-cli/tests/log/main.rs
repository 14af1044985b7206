//! Streams across processes: the built program publishes and follows, dies, is stopped, is lied to.

mod commands;
mod deaths;
mod export;
mod fencing;
mod fixture;
mod memory;
mod restart;
mod roundtrip;
mod signed;
mod weights;
