//! Which checker the models are built for, and which mutants stand in them:
//! `RON_CHECKER=loom|shuttle`, `RON_MUTANTS="name name"` (`cargo xtask loom` sets both).

fn main() {
    for name in ["RON_CHECKER", "RON_MUTANTS"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    println!("cargo::rerun-if-changed=../checker.rs");
    let set = |name: &str| std::env::var(name).unwrap_or_default();
    let checker = set("RON_CHECKER");
    if ["loom", "shuttle"].contains(&checker.as_str()) {
        println!("cargo::rustc-cfg={checker}");
    }
    for mutant in set("RON_MUTANTS").split_whitespace() {
        println!("cargo::rustc-cfg=mutant=\"{mutant}\"");
    }
}
