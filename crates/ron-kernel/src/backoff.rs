//! Exponential backoff with jitter.

use std::time::Duration;

/// Doubles from `base` to `cap`; each pause is lengthened by less than `jitter`.
#[derive(Debug, Clone)]
pub struct Backoff {
    base: Duration,
    cap: Duration,
    jitter: Duration,
    step: u32,
    /// Xorshift state. Jitter needs no secrecy, only spread.
    spread: u64,
}

impl Backoff {
    /// Callers that share a schedule pass different seeds, so that they do not retry in step.
    pub fn new(base: Duration, cap: Duration, jitter: Duration, seed: u64) -> Self {
        Self {
            base,
            cap,
            jitter,
            step: 0,
            spread: seed | 1, // xorshift never leaves 0
        }
    }

    pub fn next_pause(&mut self) -> Duration {
        let pause = self
            .base
            .saturating_mul(1 << self.step.min(20)) // the shift must not overflow; `cap` decides
            .min(self.cap);
        self.step = self.step.saturating_add(1);
        pause + self.jittered()
    }

    /// Starts again at `base`; callers use it after a success.
    pub fn reset(&mut self) {
        self.step = 0;
    }

    /// Number of pauses returned since the start or the last reset.
    pub fn steps(&self) -> u32 {
        self.step
    }

    fn jittered(&mut self) -> Duration {
        // Marsaglia's xorshift64 with the triple 13, 7, 17.
        self.spread ^= self.spread << 13;
        self.spread ^= self.spread >> 7;
        self.spread ^= self.spread << 17;
        let max = self.jitter.as_nanos() as u64;
        Duration::from_nanos(if max == 0 { 0 } else { self.spread % max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_to_the_cap_with_bounded_jitter() {
        let ms = Duration::from_millis;
        let mut b = Backoff::new(ms(50), ms(300), ms(20), 7);
        for floor in [50, 100, 200, 300, 300] {
            let p = b.next_pause();
            assert!(p >= ms(floor) && p < ms(floor + 20), "{p:?} for {floor}");
        }
        b.reset();
        assert!(b.next_pause() < ms(70));
    }
}
