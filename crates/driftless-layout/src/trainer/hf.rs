//! A single process that holds every parameter whole, under its Hugging Face name.

use super::{TrainerRank, owned};
use crate::error::LayoutError;
use crate::local::LocalTensor;
use crate::model::Model;

/// The one rank. LY-1 holds trivially: it owns everything.
pub(super) fn ranks(model: &Model) -> Result<Vec<TrainerRank>, LayoutError> {
    let mut tensors = Vec::with_capacity(model.params().len());
    for meta in model.params() {
        let tensor = LocalTensor::whole(model, meta.fqn.to_string(), meta.id)?;
        tensors.push(owned(&tensor, 0..tensor.elements()));
    }
    Ok(vec![TrainerRank { name: "hf".into(), tensors }])
}
