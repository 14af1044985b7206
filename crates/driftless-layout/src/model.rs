//! The canonical parameters of a model: Hugging Face names, in byte order.

mod walk;

use crate::config::ModelConfig;
use crate::error::LayoutError;
use crate::family::generic::Split;
use crate::served::ServedDtypes;
use driftless_types::{Dtype, Fqn, ParamId, Shape};
use std::collections::BTreeMap;

/// One canonical parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamMeta {
    /// Its rank in the byte order of all names.
    pub id: ParamId,
    /// Its Hugging Face name.
    pub fqn: Fqn,
    /// Its shape: one or two axes.
    pub shape: Shape,
    /// The dtype in which it is served.
    pub dtype: Dtype,
}

impl ParamMeta {
    /// Rows of the two-dimensional view: 1 for a 1-D parameter.
    #[must_use]
    pub fn rows(&self) -> u64 {
        match self.shape.extents() {
            [rows, _] => *rows,
            _ => 1,
        }
    }

    /// Columns of the two-dimensional view: the length of a 1-D parameter.
    #[must_use]
    pub fn cols(&self) -> u64 {
        self.shape.extents().last().copied().unwrap_or(1)
    }

    /// The extent of the first axis, along which data parallel trainers cut.
    pub(crate) fn leading(&self) -> u64 {
        self.shape.extents().first().copied().unwrap_or(1)
    }

    /// The shape of `rows` steps along the first axis.
    pub(crate) fn shape_of_rows(&self, rows: u64) -> Vec<u64> {
        let mut extents = self.shape.extents().to_vec();
        extents[0] = rows;
        extents
    }

    /// The number of elements.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.rows() * self.cols()
    }
}

/// The three projections of a gated MLP, or of one expert.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatedMlp {
    pub(crate) gate: ParamId,
    pub(crate) up: ParamId,
    pub(crate) down: ParamId,
}

/// What follows the attention of a layer.
#[derive(Clone, Debug)]
pub(crate) enum Feedforward {
    Dense(GatedMlp),
    Experts { router: ParamId, experts: Vec<GatedMlp> },
}

/// The parameters of one layer.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) input_norm: ParamId,
    /// Query, key, value.
    pub(crate) qkv: [ParamId; 3],
    pub(crate) qkv_bias: Option<[ParamId; 3]>,
    pub(crate) o: ParamId,
    /// Query, key.
    pub(crate) qk_norms: Option<[ParamId; 2]>,
    pub(crate) post_norm: ParamId,
    pub(crate) feedforward: Feedforward,
}

/// The parameters of a decoder by role, so that layouts need no names.
#[derive(Clone, Debug)]
pub(crate) struct Decoder {
    pub(crate) embed: ParamId,
    pub(crate) layers: Vec<Layer>,
    pub(crate) final_norm: ParamId,
    /// `None`: tied to the embedding.
    pub(crate) lm_head: Option<ParamId>,
}

impl Decoder {
    /// How many parameters a rank holds at most, if it holds one in `ep` of each layer's experts.
    pub(crate) fn params_per_rank(&self, ep: u64) -> u64 {
        let feedforward = |layer: &Layer| match &layer.feedforward {
            Feedforward::Dense(_) => 3,
            Feedforward::Experts { experts, .. } => 1 + 3 * (experts.len() as u64).div_ceil(ep),
        };
        3 + self.layers.iter().map(|layer| 11 + feedforward(layer)).sum::<u64>()
    }
}

/// What layouts know of the parameters.
#[derive(Clone, Debug)]
enum Architecture {
    Decoder(Decoder),
    /// Only how engines cut each, in the order of their registration.
    Generic(Vec<(ParamId, Split)>),
}

/// The ending of a router's name: the parameters that the option `router=` speaks of.
pub(crate) const ROUTER_SUFFIX: &str = ".mlp.gate.weight";

/// A model: its config and its canonical parameters.
#[derive(Clone, Debug)]
pub struct Model {
    config: ModelConfig,
    params: Vec<ParamMeta>,
    ids: BTreeMap<Fqn, ParamId>,
    /// In the order in which the Hugging Face modules register them.
    registration: Vec<ParamId>,
    architecture: Architecture,
}

impl Model {
    /// The parameters that `config` describes, each with its served dtype.
    ///
    /// # Errors
    /// [`LayoutError::UnknownParameter`] if the starting policy names a tensor that the model does not have, and
    /// [`LayoutError::UnsupportedTensor`] if its name tells that it belongs to something that is refused by name.
    pub fn new(config: ModelConfig, served: &ServedDtypes) -> Result<Self, LayoutError> {
        let mut shapes = BTreeMap::new();
        walk::visit(&config, &mut |name, shape| {
            shapes.insert(Fqn::from(name), Shape::new(shape));
            ParamId::default()
        });
        served.check_names(|fqn| shapes.contains_key(fqn))?;
        let mut params = Vec::with_capacity(shapes.len());
        for (id, (fqn, shape)) in (0..).map(ParamId).zip(shapes) {
            let dtype = served.of(&fqn);
            params.push(ParamMeta { id, fqn, shape, dtype });
        }
        let ids: BTreeMap<_, _> = params.iter().map(|meta| (meta.fqn.clone(), meta.id)).collect();
        let mut registration = Vec::with_capacity(params.len());
        let architecture = walk::visit(&config, &mut |name, _| {
            registration.push(ids[name.as_str()]);
            ids[name.as_str()]
        });
        Ok(Self { config, params, ids, registration, architecture })
    }

    /// All parameters in the byte order of their names; a parameter's id is its index.
    #[must_use]
    pub fn params(&self) -> &[ParamMeta] {
        &self.params
    }

    /// The parameter of this name, if the model has it.
    #[must_use]
    pub fn param(&self, fqn: &str) -> Option<&ParamMeta> {
        self.ids.get(fqn).map(|&id| self.meta(id))
    }

    /// The config it was made from.
    #[must_use]
    pub const fn config(&self) -> &ModelConfig {
        &self.config
    }

    pub(crate) fn meta(&self, id: ParamId) -> &ParamMeta {
        &self.params[id.0 as usize]
    }

    /// The parameters in the order in which the Hugging Face modules register them.
    pub(crate) fn registration(&self) -> impl Iterator<Item = &ParamMeta> {
        self.registration.iter().map(|&id| self.meta(id))
    }

    /// The parameters by role; `None` for generic tensors.
    pub(crate) const fn decoder(&self) -> Option<&Decoder> {
        match &self.architecture {
            Architecture::Decoder(decoder) => Some(decoder),
            Architecture::Generic(_) => None,
        }
    }

    /// How engines cut generic tensors; empty for a decoder.
    pub(crate) fn generic_splits(&self) -> &[(ParamId, Split)] {
        match &self.architecture {
            Architecture::Decoder(_) => &[],
            Architecture::Generic(splits) => splits,
        }
    }
}
