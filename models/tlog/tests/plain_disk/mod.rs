//! A disk in memory whose locks are not steps of a model, unlike those of `ron_files::MemoryDisk`: threads
//! communicate through the log's snapshots, not through its files.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use ron_files::{Disk, DiskFile, DiskLock};

type Bytes = Arc<Mutex<Vec<u8>>>;

#[derive(Debug, Default)]
pub struct PlainDisk(Mutex<BTreeMap<PathBuf, Bytes>>);

#[derive(Debug)]
struct File(Bytes);

#[derive(Debug)]
struct Lock;

impl DiskLock for Lock {}

impl PlainDisk {
    fn find(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let files = self.0.lock().expect("no test panics while it holds it");
        let bytes = files.get(path).ok_or(ErrorKind::NotFound)?;
        Ok(Arc::new(File(bytes.clone())))
    }
}

impl Disk for PlainDisk {
    fn create_dir_all(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let files = self.0.lock().expect("as above");
        let here = files.keys().filter(|p| p.parent() == Some(dir));
        let names = here.filter_map(|p| p.file_name()?.to_str().map(str::to_owned));
        Ok(names.collect())
    }
    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.find(path)
    }
    fn open_write(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.find(path)
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut files = self.0.lock().expect("as above");
        files.insert(path.to_owned(), Bytes::default());
        drop(files);
        self.find(path)
    }
    fn open_or_create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut files = self.0.lock().expect("no test panics while it holds it");
        let bytes = files.entry(path.to_owned()).or_default();
        Ok(Arc::new(File(bytes.clone())))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut files = self.0.lock().expect("as above");
        let bytes = files.remove(from).ok_or(ErrorKind::NotFound)?;
        files.insert(to.to_owned(), bytes);
        Ok(())
    }
    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut files = self.0.lock().expect("as above");
        let bytes = files.get(from).cloned().ok_or(ErrorKind::NotFound)?;
        files.insert(to.to_owned(), bytes);
        Ok(())
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.lock().expect("as above").remove(path);
        Ok(())
    }
    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
    fn lock(&self, _: &Path) -> io::Result<Option<Box<dyn DiskLock>>> {
        Ok(Some(Box::new(Lock)))
    }
}

impl DiskFile for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().expect("as above").len() as u64)
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let bytes = self.0.lock().expect("as above");
        let from = bytes.get(offset as usize..).unwrap_or_default();
        let n = from.len().min(buf.len());
        buf[..n].copy_from_slice(&from[..n]);
        Ok(n)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut bytes = self.0.lock().expect("as above");
        let end = offset as usize + data.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[offset as usize..end].copy_from_slice(data);
        Ok(())
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.lock().expect("as above").resize(len as usize, 0);
        Ok(())
    }
    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
}
