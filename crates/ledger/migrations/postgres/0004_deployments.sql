-- The deployment that the entries of a namespace belong to: how its instances hash subjects. One row for each fact.
CREATE TABLE deployments (
    namespace       TEXT    NOT NULL,
    name            TEXT    NOT NULL,
    value           TEXT    NOT NULL,
    PRIMARY KEY (namespace, name)
);
