//! A machine with a disk and a date, on which a service manager keeps one service running: it is killed, drained, loses its power,
//! and starts again on what its disk has kept.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use ron_files::{CrashMode, Dir, FaultKind, SharedDisk, SimDisk};
use ron_sim::{ensure, fault, time};

use crate::chance::{below, ms};
use crate::dates::Date;
use crate::disk::{Hangs, WorldDisk};
use crate::money::services::Process;
use crate::net::SimNet;

/// Starts the service for the time of this number.
pub type Start = Arc<dyn Fn(&SimNet, u64, &Date, SharedDisk) -> Process + Send + Sync>;

pub struct Machine {
    pub ip: IpAddr,
    start: Start,
    pub image: SimDisk,
    pub date: Date,
    /// The service, and the number of its starts.
    pub process: Option<Process>,
    starts: u64,
    pub hangs: Arc<Hangs>,
    /// Called when the service is about to end, however it ends.
    ends: Arc<dyn Fn() + Send + Sync>,
}

/// Seed of the key of a ledger's log.
pub const NOTE_SEED: [u8; 32] = [7; 32];

/// A ledger's disk on which an operator has put the key of its log.
pub fn disk_with_key() -> SimDisk {
    let image = SimDisk::new();
    let home = Dir::new(Arc::new(image.clone()), Path::new("/sim/data"));
    home.create().expect("a directory");
    let key = hex::encode(NOTE_SEED);
    home.write("note.key", key.as_bytes()).expect("a file");
    image
}

pub fn disk_fault() -> FaultKind {
    [FaultKind::Io, FaultKind::NoSpace][below(2) as usize]
}

/// Drains a process: no thread of it has panicked, and no socket of its host is left.
pub fn stop(net: &SimNet, process: &mut Process, ip: IpAddr) {
    process.check_no_panics();
    process.stop();
    let left = net.open_ends(ip);
    ensure(left == 0, &format!("{left} sockets of {ip} are left"));
}

impl Machine {
    pub fn boot(net: &SimNet, ip: IpAddr, start: Start, ends: Arc<dyn Fn() + Send + Sync>) -> Self {
        Self::boot_on(SimDisk::new(), net, ip, start, ends)
    }

    /// With files on its disk that an operator has put there.
    pub fn boot_on(
        image: SimDisk,
        net: &SimNet,
        ip: IpAddr,
        start: Start,
        ends: Arc<dyn Fn() + Send + Sync>,
    ) -> Self {
        let mut machine = Self {
            ip,
            start,
            image,
            date: Date::default(),
            process: None,
            starts: 0,
            hangs: Arc::default(),
            ends,
        };
        machine.begin(net);
        machine
    }

    fn begin(&mut self, net: &SimNet) {
        self.starts += 1;
        let disk = Arc::new(WorldDisk::new(self.image.clone(), self.hangs.clone()));
        self.process = Some((self.start)(net, self.starts, &self.date, disk));
    }

    /// Nothing is wrong with the machine from now on.
    pub fn be_well(&self) {
        self.date.be_right();
        self.hangs.allow(false);
    }

    /// Its disk hangs now and then again.
    pub fn may_hang(&self) {
        self.hangs.allow(true);
    }

    /// The service dies where it stands.
    pub fn die(&mut self, net: &SimNet) {
        (self.ends)();
        if let Some(process) = self.process.take() {
            process.check_bounds();
            process.group.kill();
        }
        net.sever(self.ip);
    }

    pub fn start_again(&mut self, net: &SimNet) {
        time::sleep(ms(below(500)));
        self.begin(net);
    }

    pub fn kill(&mut self, net: &SimNet) {
        fault::happened("a service is killed");
        self.die(net);
        self.image.kill();
        self.start_again(net);
    }

    /// It is drained and started again.
    pub fn restart(&mut self, net: &SimNet) {
        fault::happened("a service is restarted");
        self.stop(net);
        self.start_again(net);
    }

    /// A call to the disk fails, of the next ones; the service runs on for a while.
    pub fn fail_disk(&mut self, net: &SimNet) {
        fault::happened("a disk fails");
        self.image.fail_after(1 + below(60), disk_fault());
        time::sleep(ms(below(1_000)));
        self.kill(net);
    }

    pub fn stop(&mut self, net: &SimNet) {
        (self.ends)();
        if let Some(mut process) = self.process.take() {
            stop(net, &mut process, self.ip);
        }
    }

    /// The power is cut, at one of the next operations of the disk if there are so many.
    pub fn lose_power(&mut self, net: &SimNet) {
        fault::happened("a machine loses its power");
        self.image.fail_after(1 + below(60), FaultKind::PowerOff);
        let by = time::now() + ms(300);
        while !self.image.is_off() && time::now() < by {
            time::sleep(ms(1));
        }
        self.die(net);
        let mode = match below(5) {
            0 => CrashMode::LoseAll,
            1 => CrashMode::KeepAll,
            _ => CrashMode::Each(fault::random()),
        };
        ron_sim::note(&format!("power cut of {}: {mode:?}", self.ip));
        self.image.crash(mode);
    }

    pub fn cut_power(&mut self, net: &SimNet) {
        self.lose_power(net);
        self.start_again(net);
    }
}
