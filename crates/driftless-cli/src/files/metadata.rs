//! The metadata strings of a trainer state: what the optimizer did in the recorded step.

use super::BadInput;
use driftless_numerics::{Family, GroupStep, Hyperparameters, StepParams};
use driftless_types::Fqn;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::str::FromStr;

/// Keys that a parameter may have a value of its own for, as `<key>@<FQN>`; the defaults of all are required.
const GROUP_KEYS: [&str; 6] = ["step", "lr", "beta1", "beta2", "eps", "weight_decay"];

/// The optimizer of a trainer state, and the step it took.
#[derive(Clone, Debug)]
pub(crate) struct Optimizer {
    /// `AdamW` or `Adam`.
    pub(crate) name: String,
    /// Whether `.max_exp_avg_sq` takes the place of `.exp_avg_sq` in the update.
    pub(crate) amsgrad: bool,
    /// Parameters whose name ends with this have no decay, unless they have a decay of their own.
    pub(crate) no_decay_suffix: Option<String>,
    /// The step of every parameter group, under the family that the file names.
    pub(crate) params: StepParams,
}

impl Optimizer {
    /// Reads the metadata of the file at `path`, whose parameters are `names`.
    pub(crate) fn parse(
        path: &Path,
        metadata: &BTreeMap<String, String>,
        names: &BTreeSet<&str>,
    ) -> Result<Self, BadInput> {
        let keys = Keys { path, metadata };
        let name = keys.optional::<String>("optimizer", "a name")?.unwrap_or_else(|| "AdamW".to_owned());
        if name != "AdamW" && name != "Adam" {
            return Err(BadInput::file(path, format!("`{name}`"), "AdamW or Adam").key("optimizer"));
        }
        let family = keys.optional("family", "the name of an optimizer family")?.unwrap_or(Family::Agnostic);
        let amsgrad = keys.flag("amsgrad")?;
        // The sign is in the first moment already: nothing depends on it but its spelling.
        keys.flag("maximize")?;
        // Every name ends with nothing: an empty suffix means none.
        let no_decay_suffix =
            keys.optional::<String>("no_decay_suffix", "the end of a name")?.filter(|s| !s.is_empty());
        let mut optimizer = Self {
            name,
            amsgrad,
            no_decay_suffix,
            params: StepParams::new(0, keys.hyperparameters()?).with_family(family),
        };
        optimizer.params.default.step = keys.required("step", "a step number")?;
        optimizer.add_overrides(&keys, names)?;
        optimizer.fold_coupled_decay();
        Ok(optimizer)
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
        let hyper = &mut group.hyper;
        let values =
            [&mut hyper.lr, &mut hyper.beta1, &mut hyper.beta2, &mut hyper.eps, &mut hyper.weight_decay];
        for (key, value) in GROUP_KEYS[1..].iter().zip(values) {
            *value = keys.optional_finite(&format!("{key}@{name}"))?.unwrap_or(*value);
        }
        Ok(group)
    }

    /// Adam's decay goes through the gradient: it is inside the moments already, and nothing is left to invert.
    fn fold_coupled_decay(&mut self) {
        if self.name != "Adam" {
            return;
        }
        self.params.default.hyper.weight_decay = 0.0;
        for group in self.params.overrides.values_mut() {
            group.hyper.weight_decay = 0.0;
        }
    }
}

/// The metadata of one file, with errors that name it.
struct Keys<'a> {
    path: &'a Path,
    metadata: &'a BTreeMap<String, String>,
}

impl<'a> Keys<'a> {
    fn hyperparameters(&self) -> Result<Hyperparameters, BadInput> {
        let value =
            |key: &str| self.optional_finite(key)?.ok_or_else(|| self.missing(key, "a finite number"));
        Ok(Hyperparameters {
            lr: value("lr")?,
            beta1: value("beta1")?,
            beta2: value("beta2")?,
            eps: value("eps")?,
            weight_decay: value("weight_decay")?,
        })
    }

    /// The parameters named behind an `@`; a name that the model lacks, or a key that no group has, is an error.
    fn parameters_with_own_values(&self, names: &BTreeSet<&'a str>) -> Result<BTreeSet<&'a str>, BadInput> {
        let mut own = BTreeSet::new();
        for key in self.metadata.keys() {
            let Some((group_key, name)) = key.split_once('@') else { continue };
            let bad = |found: String, expected: String| BadInput::file(self.path, found, expected).key(key);
            if !GROUP_KEYS.contains(&group_key) {
                return Err(bad(format!("`{group_key}`"), format!("one of {}", GROUP_KEYS.join(", "))));
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
            .fix(format!("save the state with {} as metadata strings", GROUP_KEYS.join(", ")))
    }
}
