//! What a step changed, provably: BF16 rounding, the certified rule that inverts an optimizer step without the
//! old weights, the gates in front of it, and the element digest that proves two ends hold the same bits.
//!
//! The way of one element: [`check_gates`] says whether its parameter may be inverted at all, [`Rule::new`]
//! computes the scalars of the step once in double precision, [`Rule::is_certified_unchanged`] decides per
//! element (or [`Rule::send_mask`] for 64 of them), and [`DigestKeys`] sums the words that go on the wire.
//!
//! ```
//! use driftless_numerics::{Family, GroupStep, Hyperparameters, Rule};
//! use driftless_types::Fqn;
//!
//! let hyper = Hyperparameters { lr: 1e-6, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };
//! let rule = Rule::new(&Fqn::from("model.norm.weight"), Family::Torch, &GroupStep::new(3, hyper))?;
//! // The master after the step and both moments after it: 1.0 is far from the edge of its cell.
//! assert!(rule.is_certified_unchanged(1.0, 1e-4, 1e-6));
//! // 1.00390625 is a tie between two BF16 values: nothing can be certified there.
//! assert!(!rule.is_certified_unchanged(1.003_906_2, 1e-4, 1e-6));
//! # Ok::<(), driftless_numerics::NotInvertible>(())
//! ```
//!
//! Nothing here reads a clock, does IO or allocates per element.
//!
#![doc = include_str!("../CERTIFICATE.md")]
#![forbid(unsafe_code)]

mod audit;
pub mod bf16;
pub mod conformance;
mod digest;
mod family;
mod gate;
mod params;
mod rule;
mod scalars;

pub use audit::{MasterAudit, is_fit};
pub use bf16::{Cast, CellEdges};
pub use digest::{DigestCursor, DigestKeys, DigestTable};
pub use family::{
    Agnostic, Apex, Bitsandbytes, DeepspeedCpu, Family, OptimizerFamily, Sgd, Slot, Subnormals, TeRemainder,
    Torch, TorchFusedCuda, Undecayed,
};
pub use gate::{Gate, NotInvertible, StepChange, check_gates};
pub use params::{GroupStep, Hyperparameters, Moments, NumericsError, Optimizer, StepParams};
pub use rule::{FamilyRule, Rule, RuleScalars, StepClass};
pub use scalars::{DecayScalars, Scalars};
