-- Ends its statement with SQLSTATE EW001 unless every task was moved: another transaction was faster with one of them.
CREATE FUNCTION endwell_require_moved(moved bigint, wanted integer) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF moved <> wanted THEN
        RAISE EXCEPTION 'another transaction has moved one of these tasks' USING ERRCODE = 'EW001';
    END IF;
    RETURN moved;
END
$$;
