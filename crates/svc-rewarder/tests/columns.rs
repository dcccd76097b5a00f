//! The seeds of the fuzz target for Arrow and Parquet files, in process.

#![cfg(feature = "parquet")]

#[path = "../../../fuzz/src/columns.rs"]
mod columns;

#[test]
fn seeds_of_columns_are_read_or_refused() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/columns");
    let files = std::fs::read_dir(corpus).expect("the seeds");
    let seeds = files.map(|file| std::fs::read(file.expect("a file").path()).expect("a seed"));
    let tried = seeds.map(|seed| columns::run(&seed)).count();
    assert!(tried > 0, "there are no seeds");
}
