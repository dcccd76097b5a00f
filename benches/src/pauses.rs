//! Pauses of a service under a load with an open loop, and what else was seen on the machine meanwhile.

use std::time::{Duration, Instant};

use crate::client::{Connection, request};
use crate::fleet::Fleet;
use crate::machine;
use crate::open::Sample;

/// A shorter time without a success is no pause.
pub const PAUSE: Duration = Duration::from_millis(20);

/// A time in which requests were due and none succeeded, in microseconds since the begin.
#[derive(Debug, PartialEq, Eq)]
pub struct Pause {
    pub from: u32,
    pub to: u32,
    /// Requests that were due and not answered at its end, the one that ended it included.
    pub requests: usize,
}

impl Pause {
    pub const fn length(&self) -> u32 {
        self.to - self.from
    }
}

/// The pauses of samples that are sorted by their end.
pub fn pauses(samples: &[Sample]) -> Vec<Pause> {
    let mut dues: Vec<u32> = samples.iter().map(|s| s.due).collect();
    // The earliest due time of each sample and all later ones.
    let mut first_due = dues.clone();
    for at in (1..first_due.len()).rev() {
        first_due[at - 1] = first_due[at - 1].min(first_due[at]);
    }
    dues.sort_unstable();
    let mut found = Vec::new();
    let mut last = 0;
    for (ended, (sample, first_due)) in samples.iter().zip(first_due).enumerate() {
        let from = last.max(first_due);
        if u128::from(sample.end.saturating_sub(from)) > PAUSE.as_micros() {
            found.push(Pause {
                from,
                to: sample.end,
                requests: dues.partition_point(|due| *due <= sample.end) - ended,
            });
        }
        last = sample.end;
    }
    found
}

/// Interval at which the witness looks whether it wakes up in time, and time that is late.
const NAP: Duration = Duration::from_millis(5);
/// Interval of its readings.
const READING: Duration = Duration::from_millis(100);

/// What a reading counts. Counters of services: service, metric without the service's name, and meaning.
const COUNTERS: [(&str, &str, &str); 5] = [
    (
        "ron-kms",
        "audit_fsync_seconds",
        "flushes of the KMS's audit log above 10 ms",
    ),
    (
        "ron-ledger",
        "commit_seconds",
        "commits of the ledger above 10 ms",
    ),
    (
        "ron-ledger",
        "snapshots_total{result=\"done\"}",
        "snapshots of the ledger done",
    ),
    (
        "ron-kms",
        "checkpoint_late_total",
        "checkpoints of the KMS late",
    ),
    (
        "ron-ledger",
        "checkpoint_late_total",
        "checkpoints of the ledger late",
    ),
];
/// Of the fleet's process and the machine, in milliseconds.
const TIMES: [&str; 3] = [
    "processor time of the fleet in ms",
    "processor time that the host gave to others in ms",
    "time in which nothing ran because of the disk in ms",
];
const READINGS: usize = COUNTERS.len() + TIMES.len();

/// Observes the fleet and the machine during a load.
pub struct Witness {
    pid: u32,
    /// Connections to the health ports of the services that are read.
    services: Vec<(&'static str, Connection, Vec<u8>)>,
}

/// What a witness has seen, by time since the begin.
pub struct Observations {
    readings: Vec<(u32, [u64; READINGS])>,
    /// When the witness, which only wanted to wake up, did so too late: from when to when.
    late: Vec<(u32, u32)>,
}

impl Witness {
    pub fn new(fleet: &Fleet) -> Result<Self, String> {
        let open = |service| {
            let host = fleet.health_host(service)?;
            let get = request("GET", &host, "/metrics", &[], "");
            Ok((service, Connection::open(&host)?, get))
        };
        let services = ["ron-kms", "ron-ledger"].map(open);
        Ok(Self {
            pid: fleet.pid(),
            services: services.into_iter().collect::<Result<_, String>>()?,
        })
    }

    /// Takes readings until the load has ended.
    pub fn watch(
        &mut self,
        begin: Instant,
        ended: &dyn Fn() -> bool,
    ) -> Result<Observations, String> {
        let micros = |at: Instant| (at - begin).as_micros() as u32;
        let mut seen = Observations {
            readings: vec![(0, self.read()?)],
            late: Vec::new(),
        };
        let mut read = begin;
        loop {
            let has_ended = ended();
            if has_ended || read.elapsed() >= READING {
                read = Instant::now();
                let reading = self.read()?;
                seen.readings.push((micros(Instant::now()), reading));
            }
            if has_ended {
                return Ok(seen);
            }
            let slept = Instant::now();
            std::thread::sleep(NAP);
            let woke = Instant::now();
            if woke - slept >= NAP * 2 {
                seen.late.push((micros(slept + NAP), micros(woke)));
            }
        }
    }

    fn read(&mut self) -> Result<[u64; READINGS], String> {
        let mut reading = [0; READINGS];
        for (service, connection, get) in &mut self.services {
            let text = String::from_utf8_lossy(&connection.call(get)?.body).into_owned();
            let prefix = service.replace('-', "_");
            for (value, (of, metric, _)) in reading.iter_mut().zip(COUNTERS) {
                if *service == of {
                    *value = counted(&text, &format!("{prefix}_{metric}"));
                }
            }
        }
        let used = Duration::from_secs_f64(machine::cpu_seconds(self.pid)?).as_millis() as u64;
        reading[COUNTERS.len()..].copy_from_slice(&[used, stolen_ms(), stalled_ms()]);
        Ok(reading)
    }
}

impl Observations {
    /// What was seen during a pause, for a table: what the readings around it counted, and how long they are apart.
    pub fn during(&self, pause: &Pause) -> Vec<String> {
        let before = self.readings.iter().rfind(|(at, _)| *at <= pause.from);
        let after = self.readings.iter().find(|(at, _)| *at >= pause.to);
        let after = after.or(self.readings.last());
        let mut texts = Vec::new();
        if let (Some((from, before)), Some((to, after))) = (before, after) {
            texts.push(format!("within {} ms", to.saturating_sub(*from) / 1_000));
            let names = COUNTERS.iter().map(|(_, _, text)| text).chain(&TIMES);
            for ((before, after), name) in before.iter().zip(after).zip(names) {
                if after > before {
                    texts.push(format!("{name}: {}", after - before));
                }
            }
        }
        let meets = |(from, to): &&(u32, u32)| *from < pause.to && *to > pause.from;
        let late = self
            .late
            .iter()
            .filter(meets)
            .map(|(from, to)| to - from)
            .max();
        if let Some(late) = late {
            texts.push(format!(
                "a thread that only slept woke up late by ms: {}",
                late / 1_000
            ));
        }
        texts
    }
}

/// A counter of a page of metrics, or the observations of a histogram above 10 ms.
fn counted(page: &str, metric: &str) -> u64 {
    let value = |name: &str| -> Option<u64> {
        let line = page.lines().find_map(|line| line.strip_prefix(name))?;
        line.strip_prefix(' ')?.trim().parse().ok()
    };
    let above = || {
        let within = value(&format!("{metric}_bucket{{le=\"0.01\"}}"))?;
        Some(value(&format!("{metric}_count"))?.saturating_sub(within))
    };
    value(metric).or_else(above).unwrap_or(0)
}

/// Time for which the host of a virtual machine ran others although a processor was wanted here.
fn stolen_ms() -> u64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let all = text.lines().next().unwrap_or("");
    let ticks = all.split_whitespace().nth(8).and_then(|f| f.parse().ok());
    ticks.unwrap_or(0) * 10
}

/// Time in which all threads that were not idle waited for the disk; 0 where the kernel does not count it.
fn stalled_ms() -> u64 {
    let text = std::fs::read_to_string("/proc/pressure/io").unwrap_or_default();
    let full = text.lines().find(|line| line.starts_with("full"));
    let micros = full.and_then(|line| line.rsplit('=').next()?.trim().parse().ok());
    micros.unwrap_or(0) / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn sample(due: u32, end: u32) -> Sample {
        Sample {
            due,
            end,
            is_success: true,
        }
    }

    #[test]
    fn a_pause_begins_with_the_last_answer_while_requests_wait() {
        let samples = [
            sample(1_000, 2_000),
            sample(3_000, 90_000),
            sample(1_500, 90_100),
            sample(80_000, 90_200),
            sample(95_000, 95_100),
        ];
        let found = pauses(&samples);
        assert_eq!(
            found,
            [Pause {
                from: 2_000,
                to: 90_000,
                requests: 3
            }]
        );
        assert_eq!(found[0].length(), 88_000);
    }

    #[test]
    fn time_in_which_nothing_is_due_is_no_pause() {
        assert_eq!(pauses(&[sample(0, 10), sample(500_000, 500_100)]), []);
        let late = [sample(0, 10), sample(500_000, 530_000)];
        assert_eq!(
            pauses(&late),
            [Pause {
                from: 500_000,
                to: 530_000,
                requests: 1
            }]
        );
    }

    #[test]
    fn slow_answers_that_overlap_are_no_pause() {
        let slow: Vec<Sample> = (0..100)
            .map(|n| sample(n * 10_000, n * 10_000 + 50_000))
            .collect();
        assert_eq!(
            pauses(&slow),
            [Pause {
                from: 0,
                to: 50_000,
                requests: 6
            }]
        );
    }

    #[test]
    fn a_pause_without_an_end_lasts_until_the_requests_are_given_up() {
        let hung = Sample {
            due: 20,
            end: 5_000_000,
            is_success: false,
        };
        let found = pauses(&[sample(0, 10), hung, hung]);
        assert_eq!(
            found,
            [Pause {
                from: 20,
                to: 5_000_000,
                requests: 2
            }]
        );
    }

    #[test]
    fn counters_and_slow_observations_are_read_from_a_page() {
        let page = "a_total 3\na_total_more 9\nb_seconds_bucket{le=\"0.01\"} 5\nb_seconds_bucket{le=\"+Inf\"} 7\nb_seconds_count 7\n";
        assert_eq!(counted(page, "a_total"), 3);
        assert_eq!(counted(page, "b_seconds"), 2);
        assert_eq!(counted(page, "c_total"), 0);
    }

    #[test]
    fn what_changed_between_the_readings_around_a_pause_is_named() {
        let mut changed = [0; READINGS];
        changed[1] = 2;
        let seen = Observations {
            readings: vec![
                (0, [0; READINGS]),
                (100_000, [0; READINGS]),
                (200_000, changed),
            ],
            late: vec![(50_000, 80_000), (150_000, 181_000)],
        };
        let pause = |from, to| Pause {
            from,
            to,
            requests: 1,
        };
        assert_eq!(seen.during(&pause(10_000, 40_000)), ["within 100 ms"]);
        assert_eq!(
            seen.during(&pause(110_000, 160_000)),
            [
                "within 100 ms",
                "commits of the ledger above 10 ms: 2",
                "a thread that only slept woke up late by ms: 31"
            ]
        );
    }
}
