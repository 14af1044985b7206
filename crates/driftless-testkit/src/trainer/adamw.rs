//! AdamW as PyTorch's single-tensor implementation orders it: decay first, then the moments, then the step.

use driftless_numerics::Hyperparameters;

/// The scalars of one step, computed in double precision and rounded once.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdamW {
    decay: f32,
    blend1: f32,
    beta2: f32,
    blend2: f32,
    root_bc2: f32,
    eps: f32,
    step_size: f32,
}

impl AdamW {
    /// The scalars of the 1-based step `step`.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a scalar is rounded to FP32 once, as the optimizer does"
    )]
    pub(super) fn new(hyper: &Hyperparameters, step: u64) -> Self {
        let power = i32::try_from(step).unwrap_or(i32::MAX);
        let bc1 = 1.0 - hyper.beta1.powi(power);
        let bc2 = 1.0 - hyper.beta2.powi(power);
        Self {
            decay: (1.0 - hyper.lr * hyper.weight_decay) as f32,
            blend1: (1.0 - hyper.beta1) as f32,
            beta2: hyper.beta2 as f32,
            blend2: (1.0 - hyper.beta2) as f32,
            root_bc2: bc2.sqrt() as f32,
            eps: hyper.eps as f32,
            step_size: (hyper.lr / bc1) as f32,
        }
    }

    /// Steps one element in place.
    pub(super) fn step(&self, master: &mut f32, exp_avg: &mut f32, exp_avg_sq: &mut f32, gradient: f32) {
        let decayed = *master * self.decay;
        *exp_avg += self.blend1 * (gradient - *exp_avg);
        *exp_avg_sq = *exp_avg_sq * self.beta2 + self.blend2 * gradient * gradient;
        let divisor = exp_avg_sq.sqrt() / self.root_bc2 + self.eps;
        *master = decayed - self.step_size * *exp_avg / divisor;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_moves_by_the_learning_rate_against_the_gradient() {
        let hyper = Hyperparameters { lr: 1e-3, beta1: 0.9, beta2: 0.95, eps: 1e-12, weight_decay: 0.0 };
        let adamw = AdamW::new(&hyper, 1);
        for gradient in [3e-5_f32, -7.0] {
            let (mut master, mut exp_avg, mut exp_avg_sq) = (0.5_f32, 0.0, 0.0);
            adamw.step(&mut master, &mut exp_avg, &mut exp_avg_sq, gradient);
            let moved = master - 0.5;
            assert!((moved + 1e-3 * gradient.signum()).abs() < 1e-7, "{moved}");
            assert!((exp_avg - 0.1 * gradient).abs() <= 1e-7 * gradient.abs());
        }
    }

    #[test]
    fn decay_is_multiplied_in_before_the_step() {
        let hyper = Hyperparameters { lr: 0.1, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.5 };
        let (mut master, mut exp_avg, mut exp_avg_sq) = (2.0_f32, 0.0, 0.0);
        AdamW::new(&hyper, 1).step(&mut master, &mut exp_avg, &mut exp_avg_sq, 0.0);
        assert_eq!(master, 2.0 * 0.95);
    }
}
