//! What a plan must be, told by closed-form rules that know nothing of boxes.

#![cfg(test)]

mod configs;
mod cover;
mod families;
mod plans;
mod random;
mod refusals;
mod rules;
mod strides;
mod summary;
mod texts;
mod zero;
