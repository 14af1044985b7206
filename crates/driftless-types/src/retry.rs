//! What the one who got an error can do about it.

/// What has to change before the same work can succeed. Every error enum of the workspace answers with one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Retry {
    /// Nothing that a program can do: the same call fails again until a person, or the next version, changes
    /// something.
    Never,
    /// The same call may succeed later within the same attempt.
    SameAttempt,
    /// This attempt is lost; the next one for the same version may succeed.
    NewAttempt,
    /// The caller's coordinator was superseded: only attempts of the newer epoch succeed.
    NewEpoch,
    /// The change set cannot be used here: the receiver has to be sent whole.
    NeedsAnchor,
}
