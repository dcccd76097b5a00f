//! Sealed files: whole under their name or not there, and refused when a byte is not as written.

use std::path::Path;

use ron_files::{CrashMode, Disk as _, FaultKind, FileError, Kind, Sealed, SealedWriter, SimDisk};

const KIND: Kind = Kind {
    name: b"TEST",
    version: 1,
};

fn write(disk: &SimDisk, content: &[u8]) -> std::io::Result<[u8; 32]> {
    let mut out = SealedWriter::create(disk, Path::new("/d"), "file", KIND)?;
    for piece in content.chunks(100_000) {
        out.put(piece)?;
    }
    out.finish()
}

fn read(disk: &SimDisk) -> Result<Sealed, FileError> {
    Sealed::read(disk, Path::new("/d/file"), KIND)
}

#[test]
fn a_power_cut_leaves_the_old_file_or_the_new_one() {
    let (old, new) = (vec![1; 700_000], vec![2; 600_000]);
    let whole = SimDisk::new();
    write(&whole, &old).expect("written");
    let before = whole.operations();
    write(&whole, &new).expect("written");
    for cut in 1..=whole.operations() - before {
        let disk = SimDisk::new();
        write(&disk, &old).expect("written");
        disk.fail_after(cut, FaultKind::PowerOff);
        assert!(write(&disk, &new).is_err());
        for mode in [
            CrashMode::LoseAll,
            CrashMode::KeepAll,
            CrashMode::TearLast(9),
            CrashMode::HoleInLast(0),
        ] {
            let image = disk.fork();
            image.crash(mode);
            let found = read(&image).unwrap_or_else(|why| panic!("cut at {cut}, {mode:?}: {why}"));
            assert!(
                [&old, &new].contains(&&found.content().to_vec()),
                "{cut}, {mode:?}"
            );
        }
    }
    let hash = write(&whole, &new).expect("written");
    whole.crash(CrashMode::LoseAll);
    let found = read(&whole).expect("durable");
    assert_eq!((found.content(), found.hash), (&new[..], hash));
}

#[test]
fn every_flipped_or_missing_byte_is_refused() {
    let disk = SimDisk::new();
    write(&disk, b"some content").expect("written");
    let path = Path::new("/d/file");
    let good = disk.peek(path).expect("there");
    assert_eq!(&good[..8], b"RONTEST\x01");
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 0x20;
        disk.poke(path, Some(bytes));
        let why = read(&disk).expect_err("refused");
        let newer = matches!(
            why,
            FileError::Newer {
                found: 0x21,
                known: 1,
                ..
            }
        );
        assert_eq!(newer, at == 7, "{at}: {why}");
        assert!(why.to_string().contains("/d/file"), "{why}");
        disk.poke(path, Some(good[..at].to_vec()));
        assert!(
            matches!(read(&disk), Err(FileError::Damaged { .. })),
            "cut at {at}"
        );
    }
    disk.poke(path, None);
    assert!(matches!(read(&disk), Err(FileError::Io { .. })));
    assert!(disk.list(Path::new("/d")).expect("lists").is_empty());
}
