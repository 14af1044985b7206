//! The program as its users run it: exit codes, reports and errors.

mod bad_input;
mod certify;
mod commands;
mod fixture;
mod layouts;
mod plan;
mod weights;
