//! Layouts: from the trainer's memory straight into the receiver's, as boxes that are composed once.
//!
//! Three coordinate systems and two maps:
//!
//! ```text
//! trainer-local flat index --trainer layout--> canonical (FQN, flat) --engine layout--> receiver-local
//! ```
//!
//! Every rule is a list of boxes. [`RemapPlan::compile`] intersects the two lists at join, from the model's
//! config alone; per step only sorted indices go through its fragments.
//!
//! - **LY-1 (one owner).** Every canonical element has exactly one trainer owner.
//! - **LY-2 (full cover).** Every receiver element, padding apart, is covered by exactly one fragment.
//! - **LY-3 (one plan).** Both sides compute the same plan, and its digest says so.
//! - **LY-4 (typed refusal).** Whatever does not fit is a [`LayoutError`] before a byte moves.
//! - **LY-5 (strides are a view).** A binding with [`Strides`] changes where elements lie and nothing else.
//!
//! ```
//! use driftless_layout::{Model, ModelConfig, RemapPlan, ServedDtypes};
//!
//! let config = ModelConfig::from_json(
//!     r#"{"model_type": "qwen3", "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2,
//!         "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 192}"#,
//! )?;
//! let trainer = "megatron:tp=2,pp=2,dp=2".parse()?;
//! let rollouts = ["vllm:tp=4".parse()?, "hf".parse()?];
//! let served = ServedDtypes::new(Default::default(), &trainer, &rollouts)?;
//! let plan = RemapPlan::compile(&Model::new(config, &served)?, &trainer, &rollouts)?;
//! assert_eq!(plan.senders().len(), 8);
//! assert_eq!(plan.replicas()[0].receivers.len(), 4);
//! # Ok::<(), driftless_layout::LayoutError>(())
//! ```
//!
//! [`RemapPlan::summary`] tells what a plan amounts to, and [`RemapPlan::svg`] draws who sends what to whom.
#![doc = include_str!("../LAYOUTS.md")]
#![forbid(unsafe_code)]

mod config;
mod engine;
mod error;
mod family;
mod fit;
mod geometry;
mod local;
mod model;
mod plan;
mod served;
mod stages;
mod strides;
mod text;
mod trainer;

pub use config::ModelConfig;
pub use engine::{EngineMesh, ExpertPlacement, GateUpOrder, RolloutEngine, RolloutLayout};
pub use error::LayoutError;
pub use geometry::Box2;
pub use model::{Model, ParamMeta};
pub use plan::{
    DenseGroup, DestBox, DestTensor, Edge, Fragment, MAX_FRAGMENT_ELEMENTS, MAX_LOG_FRAGMENT_ELEMENTS, Piece,
    PlanSummary, ReceiverPlan, RemapPlan, ReplicaPlan, SenderPlan, SourceRun, SourceTensor, Spread,
};
pub use served::ServedDtypes;
pub use strides::{SourceMemory, StridedDest, Strides};
pub use trainer::{MegatronMesh, MegatronOptimizer, TrainerKind, TrainerLayout, ZeroGroups, ZeroStage};
