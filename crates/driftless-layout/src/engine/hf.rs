//! One process that holds every parameter whole, under its Hugging Face name.

use super::EngineRank;
use crate::error::LayoutError;
use crate::local::LocalTensor;
use crate::model::Model;

pub(super) fn ranks(model: &Model) -> Result<Vec<EngineRank>, LayoutError> {
    let whole = |meta: &crate::ParamMeta| LocalTensor::whole(model, meta.fqn.to_string(), meta.id);
    let tensors = model.params().iter().map(whole).collect::<Result<_, _>>()?;
    Ok(vec![EngineRank { name: "tp0-pp0".into(), tensors }])
}
