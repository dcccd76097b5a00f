//! Rows out of Arrow record batches: the columns `account`, `metric` and `amount`, in any order.
//!
//! Text may be of any Arrow string type, dictionaries included. Amounts may be integers of any
//! width, decimals without fraction, or decimal digits as text. Floating point is refused: it
//! cannot state exactly what was used.

use arrow_array::cast::AsArray as _;
use arrow_array::types::{
    Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, Int8Type, Int16Type, Int32Type,
    Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, LargeStringArray, RecordBatch, StringArray, StringViewArray};
use arrow_schema::{DataType, Schema};

use super::rows::Rows;
use super::{CSV_HEADER, ImportError, at};

/// Positions of the three columns.
#[derive(Debug)]
pub(super) struct Columns([usize; 3]);

fn refuse(why: String) -> ImportError {
    ImportError::File(why)
}

impl Columns {
    /// Finds the three columns and refuses any other: a column that is not read would be lost
    /// silently.
    pub(super) fn of(schema: &Schema) -> Result<Self, ImportError> {
        let mut found = [None; 3];
        for (number, field) in schema.fields().iter().enumerate() {
            let wanted = CSV_HEADER.iter().position(|name| name == field.name());
            let Some(slot) = wanted.map(|at| &mut found[at]) else {
                return Err(refuse(format!(
                    "column {} is none of account, metric, amount; leave it out",
                    number + 1
                )));
            };
            if slot.replace(number).is_some() {
                return Err(refuse(format!("column {} is there twice", field.name())));
            }
        }
        let mut columns = [0; 3];
        for ((column, at), name) in columns.iter_mut().zip(found).zip(CSV_HEADER) {
            *column = at.ok_or_else(|| refuse(format!("the column {name} is missing")))?;
            let kind = schema.field(*column).data_type();
            let good = is_text(kind) || (name == "amount" && is_whole(kind));
            if !good {
                let wanted = if name == "amount" {
                    "whole numbers, decimals without fraction, or digits as text"
                } else {
                    "text"
                };
                return Err(refuse(format!(
                    "the column {name} is of type {kind}; it must hold {wanted}"
                )));
            }
        }
        Ok(Self(columns))
    }

    /// Adds the rows of a batch whose first row is row `first` of its file.
    pub(super) fn add(
        &self,
        batch: &RecordBatch,
        first: u64,
        rows: &mut Rows,
    ) -> Result<(), ImportError> {
        let [account, metric, amount] = self.0.map(|at| batch.column(at).as_ref());
        let (accounts, metrics) = (Text::of(account)?, Text::of(metric)?);
        let amounts = Amounts::of(amount)?;
        for row in 0..batch.num_rows() {
            let line = first + row as u64;
            let missing = |name: &str| at(line, format!("{name} is missing (null)"));
            let account = accounts.get(row).ok_or_else(|| missing("account"))?;
            let metric = metrics.get(row).ok_or_else(|| missing("metric"))?;
            match &amounts {
                Amounts::Text(text) => {
                    let amount = text.get(row).ok_or_else(|| missing("amount"))?;
                    rows.add(line, account, metric, amount)?;
                }
                Amounts::Whole(array, value) => {
                    if array.is_null(row) {
                        return Err(missing("amount"));
                    }
                    let amount = value(row)
                        .ok_or_else(|| at(line, "amount is negative or above 2^128-1"))?;
                    rows.add_amount(line, account, metric, amount)?;
                }
            }
        }
        Ok(())
    }
}

fn is_text(kind: &DataType) -> bool {
    match kind {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Dictionary(_, values) => {
            !matches!(**values, DataType::Dictionary(..)) && is_text(values)
        }
        _ => false,
    }
}

fn is_whole(kind: &DataType) -> bool {
    match kind {
        DataType::Decimal32(_, scale)
        | DataType::Decimal64(_, scale)
        | DataType::Decimal128(_, scale)
        | DataType::Decimal256(_, scale) => *scale == 0,
        other => other.is_integer(),
    }
}

/// A column of strings.
enum Text<'a> {
    Short(&'a StringArray),
    Long(&'a LargeStringArray),
    View(&'a StringViewArray),
    /// The keys' column, each key's position in the values, and the values.
    Dictionary(&'a dyn Array, Vec<usize>, Box<Text<'a>>),
}

impl<'a> Text<'a> {
    fn of(array: &'a dyn Array) -> Result<Self, ImportError> {
        Ok(match array.data_type() {
            DataType::Utf8 => Self::Short(array.as_string()),
            DataType::LargeUtf8 => Self::Long(array.as_string()),
            DataType::Utf8View => Self::View(array.as_string_view()),
            DataType::Dictionary(..) => {
                let dictionary = array.as_any_dictionary();
                let values = dictionary.values();
                // Without any value every key is null, and no key is ever looked up.
                let places = if values.is_empty() {
                    Vec::new()
                } else {
                    dictionary.normalized_keys()
                };
                Self::Dictionary(dictionary.keys(), places, Box::new(Self::of(values)?))
            }
            other => {
                return Err(refuse(format!(
                    "a batch holds {other} where the schema said text"
                )));
            }
        })
    }

    fn get(&self, row: usize) -> Option<&str> {
        match self {
            Self::Short(array) => (!array.is_null(row)).then(|| array.value(row)),
            Self::Long(array) => (!array.is_null(row)).then(|| array.value(row)),
            Self::View(array) => (!array.is_null(row)).then(|| array.value(row)),
            Self::Dictionary(keys, places, values) => {
                let place = places.get(row).filter(|_| !keys.is_null(row))?;
                values.get(*place)
            }
        }
    }
}

/// Reads an integer; `None` if it is not an amount.
type Whole<'a> = Box<dyn Fn(usize) -> Option<u128> + 'a>;

enum Amounts<'a> {
    Text(Text<'a>),
    Whole(&'a dyn Array, Whole<'a>),
}

impl<'a> Amounts<'a> {
    fn of(array: &'a dyn Array) -> Result<Self, ImportError> {
        macro_rules! whole {
            ($kind:ty) => {{
                let numbers = array.as_primitive::<$kind>();
                Box::new(move |row| u128::try_from(numbers.value(row)).ok())
            }};
        }
        let value: Whole<'a> = match array.data_type() {
            DataType::Int8 => whole!(Int8Type),
            DataType::Int16 => whole!(Int16Type),
            DataType::Int32 => whole!(Int32Type),
            DataType::Int64 => whole!(Int64Type),
            DataType::UInt8 => whole!(UInt8Type),
            DataType::UInt16 => whole!(UInt16Type),
            DataType::UInt32 => whole!(UInt32Type),
            DataType::UInt64 => whole!(UInt64Type),
            DataType::Decimal32(..) => whole!(Decimal32Type),
            DataType::Decimal64(..) => whole!(Decimal64Type),
            DataType::Decimal128(..) => whole!(Decimal128Type),
            DataType::Decimal256(..) => {
                let numbers = array.as_primitive::<Decimal256Type>();
                Box::new(move |row| match numbers.value(row).to_parts() {
                    (low, 0) => Some(low),
                    _ => None,
                })
            }
            _ => return Text::of(array).map(Self::Text),
        };
        Ok(Self::Whole(array, value))
    }
}
