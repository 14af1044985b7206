//! Which dtype a parameter is served in: the starting policy's, else the option's, else BF16.

use crate::engine::RolloutLayout;
use crate::error::LayoutError;
use crate::model::ROUTER_SUFFIX;
use crate::trainer::TrainerLayout;
use driftless_types::{Dtype, Fqn};
use std::collections::BTreeMap;

/// Parts of names that tell what a foreign tensor belongs to, what that is, and what it would need.
const UNSUPPORTED_TENSORS: [(&str, &str, &str); 14] = [
    (".shared_expert_gate.", "a shared expert's gate", "a converter for the shared expert and its gate"),
    (".shared_expert", "a shared expert", "a converter for the shared expert and its gate"),
    (".experts.gate_up_proj", GROUPED, "a converter from one tensor to experts"),
    (".experts.down_proj", GROUPED, "a converter from one tensor to experts"),
    ("e_score_correction_bias", "a router's correction bias", "a family that lists it"),
    (".linear_attn.", "a linear-attention block", "a converter for that kind of block"),
    (".o_gate", "an attention output gate", "a converter that knows the gate's rows"),
    ("mtp.", "an MTP or draft head", "converters for the head's own layers"),
    ("eagle", "an MTP or draft head", "converters for the head's own layers"),
    ("lora_", "a LoRA adapter", "a converter that merges adapters into the weights that engines serve"),
    ("weight_scale", QUANTIZED, "served dtypes other than BF16 and F32"),
    (".qweight", QUANTIZED, "served dtypes other than BF16 and F32"),
    (".qzeros", QUANTIZED, "served dtypes other than BF16 and F32"),
    (".scales", QUANTIZED, "served dtypes other than BF16 and F32"),
];
const GROUPED: &str = "a single 3-D tensor of all experts";
const QUANTIZED: &str = "a quantized weight";

/// The served dtypes that a starting policy and the layouts' `router=` options ask for, without contradiction.
///
/// The default asks for nothing: every parameter is served as BF16.
#[derive(Clone, Debug, Default)]
pub struct ServedDtypes {
    from_policy: BTreeMap<Fqn, Dtype>,
    router: Option<Dtype>,
}

impl ServedDtypes {
    /// Collects what the starting policy (may be empty) and the layouts say. On a model without a router the
    /// option has no effect.
    ///
    /// # Errors
    /// [`LayoutError::DtypeContradiction`] if two layouts, or a layout and the policy, disagree about a router.
    pub fn new(
        from_policy: BTreeMap<Fqn, Dtype>,
        trainer: &TrainerLayout,
        rollouts: &[RolloutLayout],
    ) -> Result<Self, LayoutError> {
        let mut router: Option<(Dtype, String)> = None;
        for (dtype, layout) in router_options(trainer, rollouts) {
            let (first, first_layout) = router.get_or_insert_with(|| (dtype, layout.clone()));
            if *first != dtype {
                return Err(contradiction("router", (dtype, &layout), (*first, first_layout)));
            }
        }
        if let Some((dtype, layout)) = &router {
            for (fqn, found) in from_policy.iter().filter(|(fqn, _)| fqn.as_str().ends_with(ROUTER_SUFFIX)) {
                if found != dtype {
                    return Err(contradiction(
                        fqn.as_str(),
                        (*found, "the starting policy"),
                        (*dtype, layout),
                    ));
                }
            }
        }
        Ok(Self { from_policy, router: router.map(|(dtype, _)| dtype) })
    }

    /// The dtype in which the parameter of this name is served.
    #[must_use]
    pub fn of(&self, fqn: &Fqn) -> Dtype {
        if let Some(dtype) = self.from_policy.get(fqn) {
            return *dtype;
        }
        let is_router = fqn.as_str().ends_with(ROUTER_SUFFIX);
        self.router.filter(|_| is_router).unwrap_or(Dtype::Bf16)
    }

    /// Checks that the policy names nothing but parameters of the model.
    pub(crate) fn check_names(&self, exists: impl Fn(&Fqn) -> bool) -> Result<(), LayoutError> {
        let Some(fqn) = self.from_policy.keys().find(|fqn| !exists(fqn)) else {
            return Ok(());
        };
        match UNSUPPORTED_TENSORS.iter().find(|(part, ..)| fqn.as_str().contains(part)) {
            Some(&(_, feature, needed)) => {
                Err(LayoutError::UnsupportedTensor { fqn: fqn.clone(), feature, needed })
            }
            None => Err(LayoutError::UnknownParameter { fqn: fqn.clone() }),
        }
    }
}

/// What the layouts say of the router's dtype, each with the layout's text.
pub(crate) fn router_options(
    trainer: &TrainerLayout,
    rollouts: &[RolloutLayout],
) -> impl Iterator<Item = (Dtype, String)> {
    let of_trainer = trainer.router.map(|dtype| (dtype, trainer.to_string()));
    let of_rollouts = rollouts.iter().filter_map(|rollout| Some((rollout.router?, rollout.to_string())));
    of_trainer.into_iter().chain(of_rollouts)
}

pub(crate) fn contradiction(name: &str, found: (Dtype, &str), expected: (Dtype, &str)) -> LayoutError {
    LayoutError::DtypeContradiction {
        name: name.into(),
        found: found.0,
        found_in: found.1.into(),
        expected: expected.0,
        expected_in: expected.1.into(),
    }
}
