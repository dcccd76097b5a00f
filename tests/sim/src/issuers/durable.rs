//! KMS, issuer and verifier with their files, each on a machine of its own whose power may be cut: what was revoked stays revoked,
//! what was signed stays in the KMS's log, and ten seconds after the last fault tokens are given and accepted again.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ron_files::SharedDisk;
use ron_sim::{ensure, fault, time};

use super::actors::{Actor, End, Shared, seen};
use super::follower::Follower;
use super::policy::Change;
use super::services::{self, Keys};
use super::tokens::Token;
use super::{CLIENTS, ISSUER, KMS, RECOVERY, VERIFIER, finish, spawn, works_before};
use crate::chance::{below, ms, one_of};
use crate::dates::Date;
use crate::explore::{Operations, explore_services};
use crate::hosts::{self, client_ip};
use crate::machine::Machine;
use crate::money::services::Process;
use crate::net::{SimNet, Weather};

/// A connection that falls silent is noticed by a verifier at the end of a poll only, after 23 s.
fn bad_weather() -> Weather {
    Weather {
        slow_segments: one_of([0, 20_000, 100_000]),
        slow: ms(one_of([1, 30, 300]).into()),
        cuts: one_of([0, 2_000, 20_000]),
        refusals: one_of([0, 5_000, 50_000]),
        ..Weather::default()
    }
}

/// The issuer's record of the newest policy that it has accepted.
const ACCEPTED: &str = "/sim/data/issuer.accepted";

struct World {
    net: SimNet,
    keys: Keys,
    kms: Machine,
    issuer: Machine,
    verifier: Machine,
    shared: Shared,
}

type Service = fn(&SimNet, &Keys, u64, &Date, Option<SharedDisk>) -> Process;

impl World {
    fn start() -> Self {
        let net = SimNet::new(Weather::default());
        net.note_requests("GET /v1/passport/events?");
        let ends: Arc<dyn Fn() + Send + Sync> = Arc::new(|| {});
        let kms =
            |net: &SimNet, number, date: &Date, disk| services::kms(net, number, date, Some(disk));
        let kms = Machine::boot(&net, KMS, Arc::new(kms), ends.clone());
        let http = Arc::new(hosts::client(net.host(client_ip(7)), 7));
        // Keys are made before anything goes wrong.
        kms.be_well();
        let keys = Keys::made(&services::keeper(http), "durable");
        kms.may_hang();
        let boot = |ip: IpAddr, start: Service| {
            let keys = keys.clone();
            let start = move |net: &SimNet, number, date: &Date, disk| {
                start(net, &keys, number, date, Some(disk))
            };
            Machine::boot(&net, ip, Arc::new(start), ends.clone())
        };
        Self {
            kms,
            issuer: boot(ISSUER, services::issuer),
            verifier: boot(VERIFIER, services::verifier),
            keys: keys.clone(),
            shared: Shared::default(),
            net,
        }
    }

    /// One fault after the other, then none.
    fn disturb(&mut self, chief: &Actor) {
        for _ in 0..2 + below(6) {
            time::sleep(ms(below(800)));
            match below(34) {
                0 => hosts::part(&self.net, ISSUER, KMS, 3_000),
                1 => hosts::part(&self.net, ISSUER, VERIFIER, 5_000),
                2 => {
                    let client = client_ip(below(CLIENTS.into()) as u8);
                    hosts::part(&self.net, ISSUER, client, 2_000);
                }
                3 => self.net.set_weather(bad_weather()),
                4 => self.pause(),
                5..=8 => self.end_in_a_request(),
                9 => self.issuer.kill(&self.net),
                10 => self.kms.kill(&self.net),
                11 => self.verifier.kill(&self.net),
                12 => self.verifier.cut_power(&self.net),
                13 => self.issuer.restart(&self.net),
                14 => self.kms.restart(&self.net),
                15 => self.verifier.restart(&self.net),
                16 => self.issuer.fail_disk(&self.net),
                17 => self.kms.fail_disk(&self.net),
                18 => self.verifier.fail_disk(&self.net),
                19 | 20 => self.end_behind_a_revocation(),
                21..=25 => self.without_the_kms(chief),
                27 | 29 | 30 => self.start_from_an_old_copy(chief),
                26 => self.end_in_a_start(),
                28 => self.all_at_once(),
                _ => self.machines()[below(3) as usize].date.jump(),
            }
        }
        self.calm_down();
        for machine in self.machines() {
            machine.be_well();
        }
    }

    const fn machines(&self) -> [&Machine; 3] {
        [&self.kms, &self.issuer, &self.verifier]
    }

    fn calm_down(&self) {
        self.net.set_weather(Weather::default());
        for machine in self.machines() {
            machine.date.be_right();
        }
    }

    /// The issuer or its KMS loses its power again while it starts.
    fn end_in_a_start(&mut self) {
        let machine = if below(2) == 0 {
            &mut self.kms
        } else {
            &mut self.issuer
        };
        machine.cut_power(&self.net);
        machine.cut_power(&self.net);
    }

    fn all_at_once(&mut self) {
        let mut all = [&mut self.kms, &mut self.issuer, &mut self.verifier];
        all.iter_mut()
            .for_each(|machine| machine.lose_power(&self.net));
        all.iter_mut()
            .for_each(|machine| machine.start_again(&self.net));
    }

    fn good_token(&self) -> Option<Token> {
        seen(&self.shared).good()
    }

    /// The KMS is down for a while. Issuer and verifier die, and what was given before is accepted by what they have kept.
    fn without_the_kms(&mut self, chief: &Actor) {
        self.calm_down();
        // One that was accepted, and that nobody has revoked yet.
        for _ in 0..3 {
            if chief.get() == Some(End::Accepted) {
                break;
            }
        }
        fault::happened("the KMS is down");
        self.kms.die(&self.net);
        self.kms.image.kill();
        let is_old = chief.put_an_old_policy();
        match below(3) {
            0 => {}
            1 => self.issuer.kill(&self.net),
            _ => self.issuer.cut_power(&self.net),
        }
        if below(2) == 0 {
            self.verifier.kill(&self.net);
        }
        let by = time::now() + RECOVERY;
        // A token that was accepted, unless somebody has asked for its revocation meanwhile.
        while let Some(token) = self.good_token() {
            if chief.show(&token) == End::Accepted {
                fault::happened("a token counts without the KMS");
                break;
            }
            ensure(
                time::now() < by,
                &format!("without the KMS it is not accepted: {token:?}"),
            );
            time::sleep(ms(200));
        }
        self.kms.start_again(&self.net);
        if is_old {
            // The issuer calls its KMS again only after a pause.
            chief.visit_for(2_000 + below(6_000));
            chief.put_the_newest_policy();
        }
    }

    /// The issuer starts with an older policy, and without its record of a newer one: its KMS alone knows that.
    fn start_from_an_old_copy(&mut self, chief: &Actor) {
        self.calm_down();
        if !chief.put_an_old_policy() {
            return;
        }
        self.issuer.lose_power(&self.net);
        self.issuer.image.poke(Path::new(ACCEPTED), None);
        self.issuer.start_again(&self.net);
        chief.visit_for(2_000 + below(6_000));
        chief.put_the_newest_policy();
    }

    fn pause(&self) {
        let of = [&self.kms, &self.issuer, &self.verifier][below(3) as usize];
        fault::happened("a service stands still");
        if let Some(process) = &of.process {
            process.group.pause(ms(below(1_500)));
        }
    }

    /// The issuer loses its power when a revocation was answered.
    fn end_behind_a_revocation(&mut self) {
        let answered = |world: &Self| seen(&world.shared).revocations.len();
        let (before, by) = (answered(self), time::now() + ms(700));
        while answered(self) == before && time::now() < by {
            time::sleep(Duration::from_micros(200));
        }
        self.issuer.cut_power(&self.net);
    }

    /// The issuer or its KMS dies soon after somebody has asked it for something.
    fn end_in_a_request(&mut self) {
        let (begun, by) = (seen(&self.shared).begun, time::now() + ms(700));
        while seen(&self.shared).begun == begun && time::now() < by {
            time::sleep(Duration::from_micros(200));
        }
        time::sleep(Duration::from_micros(below(8_000)));
        match below(4) {
            0 => self.kms.kill(&self.net),
            1 => self.kms.cut_power(&self.net),
            2 => self.issuer.kill(&self.net),
            _ => self.issuer.cut_power(&self.net),
        }
    }
}

fn run(operations: &Operations) {
    let mut world = World::start();
    let (net, keys, shared) = (world.net.clone(), world.keys.clone(), world.shared.clone());
    let (net, keys) = (&net, &keys);
    let chief = Actor::new(net, keys, 8, &shared);
    works_before(&chief, time::now() + RECOVERY);
    seen(&shared).policies.push(Change::first());
    let over = Arc::new(AtomicBool::new(false));
    let actor = |number: u8, act: fn(&mut Actor)| {
        let (mut actor, over) = (Actor::new(net, keys, number, &shared), over.clone());
        spawn(&format!("actor-{number}"), move || {
            while !over.load(Ordering::SeqCst) {
                act(&mut actor);
            }
        })
    };
    let mut actors: Vec<_> = (0..CLIENTS).map(|n| actor(n, Actor::act)).collect();
    actors.push(actor(5, Actor::operate));
    let (mut follower, ends) = (Follower::new(net, 6), over.clone());
    let follower = spawn("follower", move || {
        follower.follow(&ends);
        follower
    });
    world.disturb(&chief);
    over.store(true, Ordering::SeqCst);
    let by = time::now() + RECOVERY;
    for actor in actors {
        actor.join().expect("it is not killed");
    }
    let mut follower = follower.join().expect("it is not killed");
    finish(&world.net, &chief, &mut follower, false, by);
    world.issuer.stop(&world.net);
    world.kms.stop(&world.net);
    world.verifier.stop(&world.net);
    let calls = seen(&shared).calls + follower.calls;
    (0..calls).for_each(|_| operations.add());
}

/// Seeds of a process: the threads of killed services stay until it ends.
const SEEDS_MAX: u64 = 60;

#[test]
fn over_kills_and_power_cuts_no_revocation_comes_back_and_no_signature_is_without_its_leaf() {
    explore_services(SEEDS_MAX, run);
}
