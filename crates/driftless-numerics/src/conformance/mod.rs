//! Proof by trial for whoever adds a family: forward steps in every order, and generators of hard elements.
