//! Exponential backoff with jitter.

use std::time::Duration;

/// Doubles from `base` to `cap`; each step is lengthened by up to `jitter`.
#[derive(Debug, Clone)]
pub struct Backoff {
    base: Duration,
    cap: Duration,
    jitter: Duration,
    step: u32,
    /// A private xorshift state: jitter needs no secrecy, only spread.
    spread: u64,
}

impl Backoff {
    /// `seed` spreads several users of the same schedule apart.
    pub fn new(base: Duration, cap: Duration, jitter: Duration, seed: u64) -> Self {
        Self {
            base,
            cap,
            jitter,
            step: 0,
            spread: seed | 1,
        }
    }

    pub fn next_pause(&mut self) -> Duration {
        let pause = self
            .base
            .saturating_mul(1 << self.step.min(20))
            .min(self.cap);
        self.step = self.step.saturating_add(1);
        pause + self.jittered()
    }

    /// Starts over after a success.
    pub fn reset(&mut self) {
        self.step = 0;
    }

    /// How many pauses were handed out since the start or the last reset.
    pub fn steps(&self) -> u32 {
        self.step
    }

    fn jittered(&mut self) -> Duration {
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
