//! The program as its users run it: exit codes, reports and errors.

mod bad_input;
mod certify;
mod commands;
mod detectors;
mod devices;
mod fixture;
mod layouts;
mod optimizers;
mod plan;
mod weights;
