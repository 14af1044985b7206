//! The optimizer family as a user names it.

use driftless_numerics::{Family, NumericsError};
use std::str::FromStr;

/// A family, or whichever the files name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FamilyArg {
    /// That of the file; agnostic where it names none.
    #[default]
    Auto,
    /// This one, whatever the file says.
    Named(Family),
}

impl FamilyArg {
    /// The family for a file that names `of_file`.
    pub(crate) const fn or(self, of_file: Family) -> Family {
        match self {
            Self::Auto => of_file,
            Self::Named(family) => family,
        }
    }
}

impl FromStr for FamilyArg {
    type Err = NumericsError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        if name == "auto" { Ok(Self::Auto) } else { name.parse().map(Self::Named) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_is_what_the_file_names_and_a_name_wins_over_it() {
        assert_eq!("auto".parse::<FamilyArg>().map(|family| family.or(Family::Apex)), Ok(Family::Apex));
        assert_eq!("torch".parse::<FamilyArg>().map(|family| family.or(Family::Apex)), Ok(Family::Torch));
        assert!("jax".parse::<FamilyArg>().is_err());
    }
}
