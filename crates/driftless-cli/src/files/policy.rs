//! A policy file: the weights a rollout serves at one version.

use super::tensor_file::{served, shape_of, stored};
use super::{BadInput, TensorFile};
use driftless_layout::ParamMeta;
use driftless_types::{Dtype, Fqn};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// An open `policy-step-NNNN.safetensors`.
pub(crate) struct PolicyFile {
    file: TensorFile,
}

impl PolicyFile {
    /// Opens the file and checks its header.
    pub(crate) fn open(path: &Path) -> Result<Self, BadInput> {
        Ok(Self { file: TensorFile::open(path)? })
    }

    /// In which dtype the file holds each parameter.
    pub(crate) fn dtypes(&self) -> Result<BTreeMap<Fqn, Dtype>, BadInput> {
        let dtype = |(name, info): (&String, &safetensors::tensor::TensorInfo)| {
            let served = served(info.dtype).ok_or_else(|| {
                BadInput::file(self.file.path(), format!("dtype {}", info.dtype), "dtype BF16 or F32")
                    .tensor(name)
            })?;
            Ok((Fqn::from(name.as_str()), served))
        };
        self.file.tensors().iter().map(dtype).collect()
    }

    /// Whether the file holds exactly the parameters of the model, in any dtype.
    pub(crate) fn check_shapes(&self, params: &[ParamMeta]) -> Result<(), BadInput> {
        for param in params {
            let info = self.file.tensors().get(param.fqn.as_str());
            let dtype = info.map_or(safetensors::Dtype::BF16, |info| info.dtype);
            self.file.expect(param.fqn.as_str(), dtype, &param.shape)?;
        }
        self.check_extra(params)
    }

    /// Whether the file holds exactly the parameters of the model, in their served dtypes.
    pub(crate) fn check(&self, params: &[ParamMeta]) -> Result<(), BadInput> {
        for param in params {
            self.file.expect(param.fqn.as_str(), stored(param.dtype), &param.shape)?;
        }
        self.check_extra(params)
    }

    /// The served bits of a parameter: 16-bit words in canonical order, NaN payloads untouched.
    pub(crate) fn words(&self, param: &ParamMeta) -> Result<Vec<u16>, BadInput> {
        self.file.words(param.fqn.as_str())
    }

    fn check_extra(&self, params: &[ParamMeta]) -> Result<(), BadInput> {
        let known: BTreeSet<&str> = params.iter().map(|param| param.fqn.as_str()).collect();
        let mut tensors = self.file.tensors().iter();
        let Some((name, info)) = tensors.find(|(name, _)| !known.contains(name.as_str())) else {
            return Ok(());
        };
        Err(BadInput::file(
            self.file.path(),
            format!("an extra tensor of {} {}", info.dtype, shape_of(info)),
            "only parameters that config.json implies",
        )
        .tensor(name)
        .fix("remove it, or check that config.json belongs to this policy"))
    }
}
