//! Policies and trainer states on disk: every file is checked completely against the model before anything runs.
//!
//! Headers are read and checked first, for all files of a folder; tensors are read one at a time afterwards, so that
//! memory is bounded by the largest parameter and not by the file.

mod bad_input;
mod folder;
mod metadata;
mod policy;
mod step_file;
mod tensor_file;
mod trainer_state;

pub(crate) use bad_input::BadInput;
pub(crate) use folder::{Folder, RecordedStep};
pub(crate) use metadata::Optimizer;
pub(crate) use policy::PolicyFile;
pub(crate) use step_file::{StepElements, StepFile};
pub(crate) use tensor_file::{TensorFile, stored};
pub(crate) use trainer_state::{Slot, TrainerState, parameter_names};
