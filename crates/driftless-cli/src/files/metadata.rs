//! The metadata strings of a trainer state: what the optimizer did in the recorded step.

use super::BadInput;
use driftless_numerics::{Family, GroupStep, Hyperparameters, Optimizer as Kind, StepParams};
use driftless_types::Fqn;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::str::FromStr;

/// Keys that a parameter may have a value of its own for, as `<key>@<FQN>`; the defaults of all are required.
const fn group_keys(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::AdamW | Kind::Adam => &["step", "lr", "beta1", "beta2", "eps", "weight_decay"],
        Kind::Sgd => &["step", "lr", "momentum", "weight_decay"],
    }
}

/// The numbers of an optimizer with their keys. SGD's momentum takes the place of the first beta; it has no second one
/// and no epsilon.
fn numbers(kind: Kind, hyper: &mut Hyperparameters) -> Vec<(&'static str, &mut f64)> {
    let Hyperparameters { lr, beta1, beta2, eps, weight_decay } = hyper;
    let values = match kind {
        Kind::AdamW | Kind::Adam => vec![lr, beta1, beta2, eps, weight_decay],
        Kind::Sgd => vec![lr, beta1, weight_decay],
    };
    group_keys(kind)[1..].iter().copied().zip(values).collect()
}

/// The optimizer of a trainer state, and the step it took.
#[derive(Clone, Debug)]
pub(crate) struct Optimizer {
    /// Whether `.max_exp_avg_sq` takes the place of `.exp_avg_sq` in the update.
    pub(crate) amsgrad: bool,
    /// Parameters whose name ends with this have no decay, unless they have a decay of their own.
    pub(crate) no_decay_suffix: Option<String>,
    /// The step of every parameter group by the file's optimizer, under the family that the file names.
    pub(crate) params: StepParams,
}

impl Optimizer {
    /// Reads the metadata of the file at `path`, whose parameters are `names`.
    pub(crate) fn parse(
        path: &Path,
        metadata: &BTreeMap<String, String>,
        names: &BTreeSet<&str>,
    ) -> Result<Self, BadInput> {
        let mut keys = Keys { path, metadata, kind: Kind::AdamW };
        keys.kind = keys.optional("optimizer", "AdamW, Adam or SGD")?.unwrap_or_default();
        if keys.flag("nesterov")? {
            return Err(keys.wrong(
                "nesterov",
                "true",
                "momentum without Nesterov, whose buffer is its update",
            ));
        }
        let moments = keys.optional("moments", "fp32, bf16 or bf16-stochastic")?.unwrap_or_default();
        let family = keys.optional("family", "the name of an optimizer family")?.unwrap_or(Family::Agnostic);
        // SGD has no second moment, and so no maximum of it.
        let amsgrad = keys.flag("amsgrad")? && keys.kind != Kind::Sgd;
        // The sign is in the first moment already: nothing depends on it but its spelling.
        keys.flag("maximize")?;
        // Every name ends with nothing: an empty suffix means none.
        let no_decay_suffix =
            keys.optional::<String>("no_decay_suffix", "the end of a name")?.filter(|s| !s.is_empty());
        let hyper = keys.hyperparameters()?;
        let step = GroupStep::new(keys.required("step", "a step number")?, hyper);
        let default = step.with_optimizer(keys.kind).with_moments(moments);
        let params = StepParams { family, default, overrides: BTreeMap::new() };
        let mut optimizer = Self { amsgrad, no_decay_suffix, params };
        optimizer.add_overrides(&keys, names)?;
        Ok(optimizer)
    }

    /// Which optimizer it is.
    pub(crate) const fn kind(&self) -> Kind {
        self.params.default.optimizer
    }

    /// The step number after the recorded step.
    pub(crate) const fn step(&self) -> u64 {
        self.params.default.step
    }

    fn add_overrides(&mut self, keys: &Keys<'_>, names: &BTreeSet<&str>) -> Result<(), BadInput> {
        let mut own = keys.parameters_with_own_values(names)?;
        if let Some(suffix) = &self.no_decay_suffix {
            own.extend(names.iter().filter(|name| name.ends_with(suffix.as_str())).copied());
        }
        for name in own {
            let group = self.own_group(keys, name)?;
            self.params.overrides.insert(Fqn::from(name), group);
        }
        Ok(())
    }

    fn own_group(&self, keys: &Keys<'_>, name: &str) -> Result<GroupStep, BadInput> {
        let mut group = self.params.default.clone();
        if self.no_decay_suffix.as_ref().is_some_and(|suffix| name.ends_with(suffix.as_str())) {
            group.hyper.weight_decay = 0.0;
        }
        group.step = keys.optional(&format!("step@{name}"), "a step number")?.unwrap_or(group.step);
        for (key, value) in numbers(self.kind(), &mut group.hyper) {
            *value = keys.optional_finite(&format!("{key}@{name}"))?.unwrap_or(*value);
        }
        Ok(group)
    }
}

/// The metadata of one file, with errors that name it.
struct Keys<'a> {
    path: &'a Path,
    metadata: &'a BTreeMap<String, String>,
    kind: Kind,
}

impl<'a> Keys<'a> {
    fn hyperparameters(&self) -> Result<Hyperparameters, BadInput> {
        let mut hyper = Hyperparameters { lr: 0.0, beta1: 0.0, beta2: 0.0, eps: 0.0, weight_decay: 0.0 };
        for (key, value) in numbers(self.kind, &mut hyper) {
            *value = self.optional_finite(key)?.ok_or_else(|| self.missing(key, "a finite number"))?;
        }
        Ok(hyper)
    }

    /// The parameters named behind an `@`; a name that the model lacks, or a key that no group has, is an error.
    fn parameters_with_own_values(&self, names: &BTreeSet<&'a str>) -> Result<BTreeSet<&'a str>, BadInput> {
        let mut own = BTreeSet::new();
        for key in self.metadata.keys() {
            let Some((group_key, name)) = key.split_once('@') else { continue };
            let bad = |found: String, expected: String| BadInput::file(self.path, found, expected).key(key);
            if !group_keys(self.kind).contains(&group_key) {
                return Err(bad(
                    format!("`{group_key}`"),
                    format!("one of {}", group_keys(self.kind).join(", ")),
                ));
            }
            let Some(known) = names.get(name) else {
                return Err(bad(format!("parameter `{name}`"), "a parameter of the model".into()));
            };
            own.insert(*known);
        }
        Ok(own)
    }

    fn required<T: FromStr>(&self, key: &str, expected: &str) -> Result<T, BadInput> {
        self.optional(key, expected)?.ok_or_else(|| self.missing(key, expected))
    }

    fn optional<T: FromStr>(&self, key: &str, expected: &str) -> Result<Option<T>, BadInput> {
        let Some(text) = self.metadata.get(key) else { return Ok(None) };
        let parsed = text.trim().parse().map_err(|_| self.wrong(key, text, expected))?;
        Ok(Some(parsed))
    }

    fn optional_finite(&self, key: &str) -> Result<Option<f64>, BadInput> {
        let value: Option<f64> = self.optional(key, "a finite number")?;
        match value {
            Some(number) if !number.is_finite() => {
                Err(self.wrong(key, &number.to_string(), "a finite number"))
            }
            _ => Ok(value),
        }
    }

    fn flag(&self, key: &str) -> Result<bool, BadInput> {
        match self.metadata.get(key).map(String::as_str) {
            None | Some("false" | "False") => Ok(false),
            Some("true" | "True") => Ok(true),
            Some(other) => Err(self.wrong(key, other, "true or false")),
        }
    }

    fn wrong(&self, key: &str, found: &str, expected: &str) -> BadInput {
        BadInput::file(self.path, format!("`{found}`"), expected).key(key)
    }

    fn missing(&self, key: &str, expected: &str) -> BadInput {
        BadInput::file(self.path, "no such key", expected)
            .key(key)
            .fix(format!("save the state with {} as metadata strings", group_keys(self.kind).join(", ")))
    }
}
